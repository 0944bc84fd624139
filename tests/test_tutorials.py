"""What the tutorials show is what happens."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mnagt.cli import main

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md"))
SMALL = ["--epochs", "2", "--dim", "8", "--depth", "1"]


def test_there_is_one_for_each_kind_of_user_and_the_site_has_it():
    assert NAMES == ["engineer", "practitioner", "researcher"]
    nav = (FOLDER.parents[1] / "mkdocs.yml").read_text()
    assert all(f"tutorials/{name}.md" in nav for name in NAMES)


@pytest.mark.parametrize("name", ["researcher", "practitioner", pytest.param("engineer", marks=pytest.mark.slow)])
def test_commands_and_code_run_in_order(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|console)\n(.*?)```", (FOLDER / f"{name}.md").read_text("utf-8"), re.DOTALL)
    assert blocks
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, name, "exec"), {})
            continue
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ mnagt "))
            words += SMALL if words[0] == "train" else []
            if words[0] == "export":  # what is traced has no shapes to check
                subprocess.run([sys.executable, "-m", "mnagt", *words], check=True)
            else:
                assert main(words) == 0, (line, capsys.readouterr().err)
