"""Writes a bill of materials (CycloneDX) and the licences of what mnagt and its extras install, but for docs and dev.

    python tools/sbom.py [FOLDER]

It describes the packages that this Python has installed. A licence that is not known, or that would bind programs that
use mnagt (GPL, AGPL), is an error.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("docs", "dev")
"""Extras for those who work on mnagt itself."""
NOT_DECLARED = {"protobuf": "BSD-3-Clause", "ray": "Apache-2.0"}
"""Licences that packages bring as a text only."""
BINDING = re.compile(r"(?<!L)\bA?GPL", re.IGNORECASE)


def list_packages() -> dict[str, str]:
    """Name and version of each package that mnagt needs, with its extras, as far as it is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in LEFT_OUT}
    todo = [
        Requirement(text) for text in (*project["dependencies"], *(text for each in extras.values() for text in each))
    ]
    versions: dict[str, str] = {}
    visited: set[tuple[str, str]] = set()
    while todo:
        wanted = todo.pop()
        name = normalize_name(wanted.name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform, or an extra that is not installed here
        versions[name] = found.version
        for extra in ("", *wanted.extras):
            if (name, extra) not in visited:
                visited.add((name, extra))
                todo.extend(_list_requirements(found, extra))
    return versions


def _list_requirements(found: importlib.metadata.Distribution, extra: str) -> Iterator[Requirement]:
    for text in found.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield needed


def normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def make_bill(packages: dict[str, str]) -> dict[str, Any]:
    """The CycloneDX document of these packages, the same each time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bill.json"
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
        command += [
            "--pyproject",
            str(ROOT / "pyproject.toml"),
            "--mc-type",
            "library",
            "-o",
            str(path),
            sys.executable,
        ]
        subprocess.run(command, check=True)
        bill = json.loads(path.read_text(encoding="utf-8"))
    components = [each for each in bill["components"] if normalize_name(each["name"]) in packages]
    for each in components:
        if not each.get("licenses") and (licence := NOT_DECLARED.get(normalize_name(each["name"]))):
            each["licenses"] = [{"license": {"id": licence, "acknowledgement": "concluded"}}]
    kept = {each["bom-ref"] for each in components} | {bill["metadata"]["component"]["bom-ref"]}
    links = [
        each | {"dependsOn": inner}
        if (inner := [ref for ref in each.get("dependsOn", ()) if ref in kept])
        else {"ref": each["ref"]}
        for each in bill["dependencies"]
        if each["ref"] in kept
    ]
    return bill | {"components": components, "dependencies": links}


def describe_licence(component: dict[str, Any]) -> str:
    """The licence of a component in words; '' if it names none."""
    names = []
    for each in component.get("licenses", ()):
        licence = each.get("license", {})
        text = each.get("expression") or licence.get("id") or licence.get("name") or ""
        names.append(text.strip().split("\n")[0])
    return " / ".join(dict.fromkeys(name for name in names if name))


def main(out: Path) -> None:
    bill = make_bill(list_packages())
    licences = {f"{each['name']} {each['version']}": describe_licence(each) for each in bill["components"]}
    out.mkdir(parents=True, exist_ok=True)
    (out / "sbom.cdx.json").write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    rows = "".join(
        f"| {name} | {licence} |\n" for name, licence in sorted(licences.items(), key=lambda row: row[0].lower())
    )
    (out / "licences.md").write_text(f"| package | licence |\n| --- | --- |\n{rows}", encoding="utf-8")
    print(f"{len(licences)} packages in {out / 'sbom.cdx.json'} and {out / 'licences.md'}")
    wrong = [name for name, licence in licences.items() if not licence or BINDING.search(licence)]
    sys.exit(f"look at their licences: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
