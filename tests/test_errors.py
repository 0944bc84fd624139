"""Errors name the line that helps."""

import importlib.metadata
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from mnagt import errors
from mnagt.cli import main
from mnagt.errors import install_command


def test_without_rdkit_the_line_for_this_clone_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.setenv("MNAGT_CACHE", str(tmp_path))
    table = tmp_path / "my.csv"
    table.write_text("smiles,y\nCCO,1\nCCN,0\n")
    assert main(["train", str(table), "--model", "gin"]) == 2
    line = capsys.readouterr().err.strip().partition("is not installed: ")[2]
    pip, install, editable, what = shlex.split(line)
    folder, _, extra = what.rpartition("[")
    assert (pip, install, editable) == ("pip", "install", "-e")
    project = tomllib.loads((Path(folder) / "pyproject.toml").read_text())["project"]
    assert any(each.startswith("rdkit") for each in project["optional-dependencies"][extra.removesuffix("]")])


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ('{"url": "file:///home/me/mnagt", "dir_info": {}}', "pip install 'mnagt[tune] @ file:///home/me/mnagt'"),
        (None, "pip install 'mnagt[tune]'"),
    ],
)
def test_a_copy_outside_of_a_clone_knows_where_it_came_from(record, line, tmp_path, monkeypatch):
    class Distribution:
        def read_text(self, name: str) -> str | None:
            return record if name == "direct_url.json" else None

    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "mnagt" / "errors.py"))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    assert install_command("tune") == line
