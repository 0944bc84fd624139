"""RDKit's process is started again when a molecule ends it, and the molecule is noted."""

import subprocess
import sys
import textwrap

import pytest

from mnagt.data.readers import molecule_reader as module
from mnagt.data.readers import rdkit_worker
from mnagt.data.readers.molecule_reader import MoleculeReader
from mnagt.data.readers.smiles import read_smiles
from mnagt.errors import InputError

FRAGILE = """
import os, runpy, sys
worker = runpy.run_path(sys.argv[1])
real = worker["FUNCTIONS"]["graph_rows"]
def fragile(smiles):
    if "N#N" in smiles:
        os._exit(11)
    return real(smiles)
while True:
    request = worker["receive"](sys.stdin.buffer)
    worker["send"](sys.stdout.buffer, fragile(request["smiles"]))
"""


def start(program: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", textwrap.dedent(program), rdkit_worker.__file__]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_molecule_that_ends_the_process_is_refused_and_the_others_are_read(monkeypatch):
    monkeypatch.setattr(module, "start_worker", lambda: start(FRAGILE))
    smiles = ["CCO", "C", "N#N", "C1CC", "CCC"]
    with MoleculeReader() as reader:
        reader.send(smiles)
        read = read_smiles(smiles, parts=reader.receive())
        assert read.kept.tolist() == [0, 1, 4]
        assert read.graphs.sizes.tolist() == [3, 1, 3]
        refused = {each.row: each.reason for each in read.refused}
        assert refused[2] == "RDKit's process ended on it, with status 11"
        assert refused.keys() == {2, 3}
        reader.send(["CC"])
        assert read_smiles(["CC"], parts=reader.receive()).graphs.sizes.tolist() == [2]


def test_it_ends_no_reading_by_several_processes(monkeypatch):
    monkeypatch.setattr(module, "start_worker", lambda: start(FRAGILE))
    smiles = ["CCO", "C"] * 600 + ["N#N", "CC"]
    found = read_smiles(smiles, workers=2)
    assert [(each.row, each.smiles) for each in found.refused] == [(1200, "N#N")]
    assert found.graphs.sizes.tolist() == [3, 1] * 600 + [2]


def test_a_process_that_ends_whatever_it_reads_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "start_worker", lambda: start("raise SystemExit(3)"))
    with pytest.raises(InputError, match="ends whatever it reads, with status 3; install RDKit anew"):
        read_smiles(["CCO"] * 1500, workers=2)
