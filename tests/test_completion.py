"""Shell completion: commands first, then the options of the command; files otherwise."""

import shutil
import subprocess

import pytest

from mnagt.cli import COMMANDS, main


def complete(script: str, *words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    line = f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}"
    ask = f'{script}\n{line}; _mnagt; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_offers_commands_and_the_options_of_a_command(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert complete(script, "mnagt", "") == list(COMMANDS)
    assert complete(script, "mnagt", "exp") == ["explain", "export"]
    assert "--batch-size" in complete(script, "mnagt", "train", "--b")
    assert complete(script, "mnagt", "predict", "runs/mine", "--le") == ["--level"]
    assert complete(script, "mnagt", "predict", "run") == [], "names of files are the shell's"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
