"""A checkpoint is that of the run, tensor by tensor, or it is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mnagt import resume, train
from mnagt.errors import InputError
from mnagt.inference.weights import load_tensors, save_tensors
from mnagt.runs.config import RunConfig, TrainConfig

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu")
LAST = "last.safetensors"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run that has trained to its end, and whose checkpoint is still there."""
    folder = tmp_path_factory.mktemp("checkpoint") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnagt.training.run.remove_checkpoint", lambda path: None)
        train(CONFIG, folder)
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model/head.0.weight", "torch.float64, not torch.float32"),
        ("optimizer/head.0.weight/exp_avg", "shape or dtype"),
    ],
)
def test_a_tensor_of_another_dtype_is_refused(name, message, run_folder, tmp_path):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    tensors, note = load_tensors(folder / LAST)
    save_tensors(folder / LAST, tensors | {name: tensors[name].to(torch.float64)}, note)
    with pytest.raises(InputError, match=message):
        resume(folder)


def test_the_optimisers_state_goes_by_the_names_of_parameters(run_folder):
    tensors, _ = load_tensors(run_folder / LAST)
    names = {name.removeprefix("model/") for name in tensors if name.startswith("model/")}
    states = {name.split("/")[1] for name in tensors if name.startswith("optimizer/")}
    assert states
    assert states <= names


def test_one_flipped_bit_is_noticed(run_folder, tmp_path):
    """The bit makes a weight large; the file is still well-formed."""
    folder = shutil.copytree(run_folder, tmp_path / "run")
    content = bytearray((folder / LAST).read_bytes())
    content[-9] ^= 0x40
    (folder / LAST).write_bytes(content)
    with pytest.raises(
        InputError, match=r"last\.safetensors: changed since it was saved .*; restore it or train again"
    ):
        resume(folder)


@pytest.mark.parametrize("value", [-4e37, float("nan"), float("inf")])
def test_a_weight_that_training_cannot_have_left_is_refused(run_folder, tmp_path, value):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    tensors, note = load_tensors(folder / LAST)
    tensors["model/head.0.weight"][0, 0] = value
    save_tensors(folder / LAST, tensors, note)
    with pytest.raises(InputError, match=r"'head\.0\.weight' holds .*: restore it or train again"):
        resume(folder)


def test_checkpoints_of_0_1_have_no_digest_and_are_read(run_folder, tmp_path):
    tensors, note = load_tensors(run_folder / LAST)
    save_file(tensors, tmp_path / LAST, metadata={"note": json.dumps(note)})
    assert load_tensors(tmp_path / LAST)[1] == note
    save_file(tensors, tmp_path / LAST, metadata={"note": json.dumps(note), "diges4": "0"})
    with pytest.raises(InputError, match="damaged or not a checkpoint"):
        load_tensors(tmp_path / LAST)
