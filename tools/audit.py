"""Looks for known vulnerabilities in the pinned packages, and for secrets in the files of the checkout.

pip-audit asks a public service; where that cannot be reached, this is said, and is no failure. detect-secrets needs
nothing.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_SECRETS = r"(^|/)(requirements\.lock|.*\.jsonl)$"
"""Files of digests: each would pass for a key."""
NO_SECRET_LINES = "|".join(
    [
        r"me:secret@127\.0\.0\.1",
        r'"digest": "[0-9a-f]{24}"',
        r'"commit": "[0-9a-f]{40}"',
        r'^ *"image/png": "iVBORw0KGgo[A-Za-z0-9+/=]*(\\n)?",?$',
        r'^ *"code": "[0-9a-f]{16}"$',
        r'^    "[\w-]+": "[0-9a-f]{64}",$',
        r"^ *secretName: [\w-]+$",
    ]
)
"""Lines with a password that a test made up, digests of data sets, a commit, a notebook's picture or digest, and the
name of a secret of Kubernetes."""


def vulnerabilities() -> list[str]:
    """Those of the packages in constraints.txt; says how many could not be looked up."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip"]
    audit = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off"], cwd=ROOT, capture_output=True, text=True
    )
    try:
        packages = json.loads(audit.stdout)["dependencies"]
    except ValueError:
        print(f"not audited, the advisory service cannot be reached: {audit.stderr.strip().splitlines()[-1:]}")
        return []
    unknown = sum("skip_reason" in each for each in packages)
    if unknown == len(packages):
        print("not audited: the advisory service knows none of the packages; it cannot be reached from here")
        return []
    print(f"{len(packages) - unknown} of {len(packages)} packages audited")
    return [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'none yet'}"
        for each in packages
        for flaw in each.get("vulns", ())
    ]


def secrets() -> list[str]:
    """What looks like a key or a password in files that git has, or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    names = [name for name in listed.stdout.decode().splitlines() if (ROOT / name).is_file()]
    command = [sys.executable, "-m", "detect_secrets", "scan"]
    command += ["--exclude-files", NO_SECRETS, "--exclude-lines", NO_SECRET_LINES, *names]
    scanned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(scanned.stdout)["results"]
    print(f"{len(names)} files scanned for secrets")
    return [f"{name}, line {each['line_number']}: {each['type']}" for name, all_ in found.items() for each in all_]


if __name__ == "__main__":
    problems = vulnerabilities() + secrets()
    sys.exit("\n".join(problems) if problems else 0)
