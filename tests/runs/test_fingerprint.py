"""A data set that has changed in anything that a model reads is noticed."""

import json
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from mnagt import load_dataset
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import write_json
from mnagt.runs.config import SplitConfig
from mnagt.runs.fingerprint import dataset_fingerprint, matches_fingerprint
from mnagt.runs.folder import RUN, SPLIT, read_split
from mnagt.runs.split import make_split
from mnagt.tasks import SingleLabel

MUTAG = load_dataset("MUTAG")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0.1"


def with_other_label() -> PackedDataset:
    assert MUTAG.node_labels is not None
    labels = MUTAG.node_labels.clone()
    labels[5] = (labels[5] + 1) % 7
    return replace(MUTAG, node_labels=labels)


def with_other_edge() -> PackedDataset:
    source = MUTAG.source.clone()
    source[:2] = source[:2].flip(0)
    return replace(MUTAG, source=source)


CHANGED = {
    "a node label": with_other_label,
    "an edge": with_other_edge,
    "a target": lambda: replace(MUTAG, targets=1 - MUTAG.targets),
    "the task": lambda: replace(MUTAG, task=SingleLabel(("no", "yes"))),
    "category names": lambda: replace(MUTAG, vocabularies={"node_labels/0": tuple("ABCDEFG")}),
    "node values": lambda: replace(MUTAG, node_values=torch.zeros(len(MUTAG.in_degree), 1)),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_noticed(what, tmp_path):
    changed = CHANGED[what]()
    assert dataset_fingerprint(changed)["digest"] != dataset_fingerprint(MUTAG)["digest"]
    write_json(tmp_path / RUN, {"dataset": dataset_fingerprint(MUTAG)})
    write_json(tmp_path / SPLIT, make_split(SplitConfig(), MUTAG).to_dict())
    read_split(tmp_path, MUTAG)
    with pytest.raises(InputError, match="put the old one back"):  # as --resume, evaluate and calibrate do
        read_split(tmp_path, changed)


def test_how_a_data_set_is_stored_makes_no_difference():
    assert MUTAG.node_labels is not None
    stored = replace(MUTAG, source=MUTAG.source.long(), node_labels=MUTAG.node_labels.to(torch.int16), block=7)
    assert dataset_fingerprint(stored) == dataset_fingerprint(MUTAG)


def test_runs_and_ledgers_of_0_1_are_recognised():
    with ZipFile(FIXTURES / "classes.zip") as archive:
        run = json.loads(archive.read("classes/run.json"))
    trial = json.loads((FIXTURES / "trials.jsonl").read_text().splitlines()[0])
    for saved in (run["dataset"], trial["dataset"]):
        assert matches_fingerprint(saved, MUTAG)
        assert not matches_fingerprint(saved, replace(MUTAG, targets=1 - MUTAG.targets))
    assert not matches_fingerprint(run["dataset"] | {"digest": "0" * 24}, MUTAG)
    assert not matches_fingerprint(None, MUTAG)
