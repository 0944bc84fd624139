"""The lock is what constraints.txt and pyproject.toml ask for, file by file."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ("pip", "setuptools")
"""What every environment brings; as new as it has them."""
sys.path.insert(0, str(ROOT / "tools"))

from lock import LOCK, normalize_name, read_lock  # type: ignore[import-not-found]  # noqa: E402


@pytest.fixture(scope="module")
def pins() -> dict[str, tuple[str, set[str]]]:
    return read_lock(LOCK)


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {normalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_every_package_has_the_version_of_the_constraints_and_a_hash(pins):
    pinned = constraints()
    assert len(pins) > 100
    for name, (version, hashes) in pins.items():
        if name in ENVIRONMENT:
            continue
        assert pinned.get(name) == version, f"{name} {version}: run tools/lock.py, or add it to constraints.txt"
        assert hashes, name


def test_all_that_the_project_asks_for_is_locked(pins):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    for each in map(Requirement, asked):
        if each.name != "mnagt" and (each.marker is None or each.marker.evaluate()):
            assert normalize_name(each.name) in pins, f"{each.name}: run tools/lock.py"
            assert Version(pins[normalize_name(each.name)][0]) in each.specifier


def test_no_address_and_no_path_is_in_it():
    text = LOCK.read_text()
    assert not re.search(r"://|index-url|find-links|file:|@ ", text)
    assert not [
        line
        for line in text.splitlines()
        if not re.match(r"#|[a-z0-9-]+==\S+ \\$|    --hash=sha256:[0-9a-f]{64}( \\)?$", line)
    ]
