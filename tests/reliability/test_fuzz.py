"""Whatever happens to a file or a request, it is read consistently or refused in a line that says what is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from reliability import fuzzing
from reliability.fuzzing import READERS

from mnagt.errors import InputError

SLOW = {"model": 12, "run": 8, "http": 40}
"""Inputs tried here of readers that take long; of others more."""


@pytest.mark.parametrize("name", READERS)
def test_broken_inputs_are_read_consistently_or_refused(name, tmp_path):
    for number in range(SLOW.get(name, 80)):
        try:
            READERS[name].attempt(number, tmp_path)
        except Exception as error:
            error.add_note(f"input {number} of {name}")
            raise


@pytest.mark.parametrize("name", READERS)
def test_whole_inputs_are_read(name, tmp_path, monkeypatch):
    """Else the broken ones would be refused for a reason of their own."""
    monkeypatch.setattr(fuzzing, "mutated", lambda drawn, content, ways=(): content)
    told = []
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        path = READERS[name].write(Random(number), tmp_path / str(number))
        try:
            READERS[name].read(path)
            told.append("read")
        except InputError as error:  # a file left out, a method that is not there
            told.append(str(error))
    assert told.count("read") >= 3, told


@pytest.mark.slow
def test_200_000_broken_inputs(tmp_path):
    command = Path(__file__).parent / "fuzz.py"
    subprocess.run([sys.executable, command, "--out", tmp_path / "fuzz.json"], check=True)
    told = json.loads((tmp_path / "fuzz.json").read_text())
    assert told["inputs"] >= 200_000
    assert not told["findings"]
