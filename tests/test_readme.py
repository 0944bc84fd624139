"""What the README shows is what happens."""

import re
import shlex
from pathlib import Path

import pytest

from mnagt.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CONSOLE = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
MNAGT = [command for command in CONSOLE if command.startswith("mnagt ")]
MAKE = [command for command in CONSOLE if command.startswith("make ")]


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_python_blocks_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.replace("epochs=60", "epochs=2"), "README.md", "exec"), {})


def test_commands_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert MNAGT
    for command in MNAGT:
        words = shlex.split(command.split(" | ")[0])[1:]
        if words[0] == "train" and "--resume" not in words:
            words += ["--epochs", "2"]
        assert main(words) == 0, (command, capsys.readouterr().err)


def test_make_commands_are_targets_of_the_makefile():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    assert {"make quickstart", "make test"} <= set(MAKE)
    for command in MAKE:
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command
