"""The bill of materials holds what mnagt installs, and nothing of which the licence is unknown or binds its users."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("cyclonedx_py")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import sbom  # type: ignore[import-not-found]  # noqa: E402


def test_it_is_what_the_package_needs_at_the_versions_of_the_constraints():
    packages = sbom.list_packages()
    assert {"torch", "fastapi", "starlette", "h11", "rdkit", "scipy"} <= set(packages)  # some of them by way of others
    assert not {"pytest", "ruff", "mkdocs-material", "cyclonedx-bom", "mnagt"} & set(packages)
    lines = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pinned = {sbom.normalize_name(name): version for name, version in lines}
    found = {name: version.partition("+")[0] for name, version in packages.items() if name != "setuptools"}
    assert found == {name: pinned[name] for name in found}


@pytest.mark.parametrize(
    ("licenses", "told", "is_binding"),
    [
        ([{"license": {"id": "MIT"}}], "MIT", False),
        ([{"expression": "Apache-2.0 OR GPL-3.0-only"}], "Apache-2.0 OR GPL-3.0-only", True),
        ([{"license": {"name": "GNU LGPL\ntext"}}, {"license": {"id": "LGPL-3.0"}}], "GNU LGPL / LGPL-3.0", False),
        ([{"license": {"id": "AGPL-3.0"}}], "AGPL-3.0", True),
        ([], "", False),
    ],
)
def test_licences_are_told_apart(licenses, told, is_binding):
    assert sbom.describe_licence({"licenses": licenses}) == told
    assert bool(sbom.BINDING.search(told)) == is_binding


@pytest.mark.slow
def test_the_files_are_written_and_valid(tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    with pytest.raises(SystemExit) as ended:
        sbom.main(tmp_path)
    assert ended.value.code == 0
    text = (tmp_path / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert {sbom.normalize_name(each["name"]): each["version"] for each in bill["components"]} == sbom.list_packages()
    references = {each["bom-ref"] for each in (*bill["components"], bill["metadata"]["component"])}
    assert all({link["ref"], *link.get("dependsOn", ())} <= references for link in bill["dependencies"])
    rows = (tmp_path / "licences.md").read_text().splitlines()[2:]
    assert len(rows) == len(bill["components"])
    assert str(tmp_path) not in text
    assert str(Path(sys.prefix)) not in text
