"""Writes ``requirements.lock``: every package that all extras need, pinned as in constraints.txt, with its hashes.

    python tools/lock.py
    pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation --editable .

pip says what it would install here, and from which files. Hashes that the lock has already for the same version stay:
run on another platform, this adds to them. Neither addresses nor paths are written.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEAD = f"""\
# Made by tools/lock.py, Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform}. To install from it:
#   pip install --require-hashes -r requirements.lock
# torch is its CPU build, whose file is another than that of the same version with CUDA: where pip finds only the
# latter, run tools/lock.py there, which adds its hash and what else it needs.
"""

Pins = dict[str, tuple[str, set[str]]]
"""Version and hashes by name."""


def normalize_name(name: str) -> str:
    """As package indices spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> Pins:
    """What the lock holds."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ") if path.exists() else ""
    pins: Pins = {}
    for line in text.splitlines():
        if found := re.match(r"([\w.-]+)==(\S+)", line):
            pins[found[1]] = (found[2], set(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)))
    return pins


def resolve_pins() -> Pins:
    """What pip would install for all extras, the package itself left out."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            report,
        ]
        subprocess.run([*command, "--constraint", ROOT / "constraints.txt", f"{ROOT}[{','.join(extras)}]"], check=True)
        plan = json.loads(report.read_text(encoding="utf-8"))
    pins: Pins = {}
    for each in plan["install"]:
        name, version = normalize_name(each["metadata"]["name"]), each["metadata"]["version"].partition("+")[0]
        if name != "mnagt":
            pins[name] = (version, {each["download_info"]["archive_info"]["hashes"]["sha256"]})
    return pins


def main() -> None:
    before, pins = read_lock(LOCK), resolve_pins()
    lines = []
    for name, (version, hashes) in sorted(pins.items()):
        if name in before and before[name][0] == version:
            hashes |= before[name][1]
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(hashes))]))
    LOCK.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{LOCK.name}: {len(pins)} packages")


if __name__ == "__main__":
    main()
