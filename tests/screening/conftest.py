"""A model of molecules that has learned nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt.data.readers.smiles import FEATURES
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model, full_settings
from mnagt.tasks import SingleLabel

SETTINGS = {"dim": 8, "depth": 1}


@pytest.fixture(scope="session")
def untrained() -> TrainedModel:
    torch.manual_seed(0)
    task = SingleLabel(("inactive", "active"))
    model = build_model("gin", SETTINGS, FEATURES, task.num_outputs).eval()
    return TrainedModel(model, task, "gin", full_settings("gin", SETTINGS), {"dataset": "toys"})


@pytest.fixture(scope="session")
def model(untrained, tmp_path_factory) -> Path:
    """The folder of the model."""
    folder = tmp_path_factory.mktemp("models") / "gin"
    folder.mkdir()
    untrained.save(folder)
    return folder


@pytest.fixture(scope="session")
def other_model(untrained, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "other"
    folder.mkdir()
    replace(untrained, task=SingleLabel(("a", "b"))).save(folder)
    return folder
