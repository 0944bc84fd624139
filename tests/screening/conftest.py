"""A model of molecules that has learned nothing, and tables for it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt.data.readers.smiles import FEATURES
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model, full_settings
from mnagt.tasks import SingleLabel

SETTINGS = {"dim": 8, "depth": 1}
SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "C1CC", "", "CN(C)C", "not a molecule", "O=C=O", "C[N+](C)(C)C", "ClC(Cl)Cl"]
"""Three of these are no molecules."""


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


def write_csv(path: Path, rows: int, start: int = 0) -> Path:
    """A table of molecules, no two rows alike."""
    lines = [f"m{n},{'C' * (n // 10 % 7)}{SMILES[n % 10]},{n / 7:.3f}" for n in range(start, start + rows)]
    path.write_text("id,smiles,weight\n" + "\n".join(lines) + "\n")
    return path
