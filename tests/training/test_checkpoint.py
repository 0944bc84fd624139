"""A checkpoint is that of the run, tensor by tensor, or it is refused."""

import shutil
from pathlib import Path

import pytest
import torch

from mnagt import resume, train
from mnagt.errors import InputError
from mnagt.inference.weights import load_tensors, save_tensors
from mnagt.runs.config import RunConfig, TrainConfig

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu")
LAST = "last.safetensors"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "run"
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
