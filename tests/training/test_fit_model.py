"""What is fitted before training is fitted to the training part alone."""

from dataclasses import replace

import pytest
import torch

from mnagt import load_dataset, train
from mnagt.data.packed import PackedDataset
from mnagt.models.registry import build_model
from mnagt.nn.wl_features import COLOURS, WLFeatures
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.split import make_split
from mnagt.tasks import Regression, SingleLabel
from mnagt.training.fit_model import fit_preprocessing, fit_task

CONFIG = RunConfig("MUTAG", "mnagt", {"dim": 8, "depth": 1, "head_dim": 4}, TrainConfig(epochs=1), device="cpu")


@pytest.fixture(scope="module")
def mutag() -> PackedDataset:
    return load_dataset("MUTAG")


def wl_rows(dataset: PackedDataset, train: torch.Tensor) -> torch.Tensor:
    model = build_model("mnagt", CONFIG.settings, dataset.features, 2)
    fit_preprocessing(model, dataset, train)
    (wl_features,) = (module for module in model.modules() if isinstance(module, WLFeatures))
    return wl_features.row


def test_the_wl_vocabulary_is_that_of_the_training_part(mutag):
    split = make_split(CONFIG.split, mutag)
    rows = wl_rows(mutag, split.train)
    graph = torch.repeat_interleave(torch.arange(len(mutag)), mutag.sizes)
    is_train = torch.zeros(len(mutag), dtype=torch.bool).index_fill(0, split.train, True)[graph]
    assert mutag.node_labels is not None
    elsewhere = torch.where(is_train[:, None], mutag.node_labels, 0)
    assert torch.equal(wl_rows(replace(mutag, node_labels=elsewhere), split.train), rows)
    assert not torch.equal(wl_rows(mutag, torch.arange(len(mutag))), rows)


def test_targets_are_scaled_by_the_training_part():
    targets = torch.tensor([[1.0], [3.0], [1000.0], [torch.nan]])
    dataset = replace(load_dataset("MUTAG"), task=Regression(("y",)), targets=targets)
    task = fit_task(TrainConfig(), dataset, torch.tensor([0, 1, 3]))
    assert isinstance(task, Regression)
    assert task.mean == pytest.approx((2.0,))
    assert task.std == pytest.approx((torch.tensor([1.0, 3.0]).std(correction=0).item(),))


def test_classes_are_weighted_by_the_training_part():
    targets = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])
    dataset = replace(load_dataset("MUTAG"), task=SingleLabel(("a", "b")), targets=targets)
    task = fit_task(TrainConfig(class_weights=True), dataset, torch.tensor([0, 1, 2, 3]))
    assert isinstance(task, SingleLabel)
    assert task.weights[1] / task.weights[0] == pytest.approx(3.0)


def test_settings_are_resolved_before_they_are_saved(tmp_path):
    run = train(CONFIG, tmp_path / "run")
    assert run.trained.settings["wl_iterations"] == 4
    assert run.trained.settings["head"] == "mlp"
    assert not [name for name, value in run.trained.settings.items() if value is None or value == "auto"]
    assert run.trained.origin["run"]["settings"] == run.trained.settings


def test_encodings_are_computed_once_for_a_data_set(mutag):
    model = build_model("mnagt", CONFIG.settings, mutag.features, 2)
    first, second = (fit_preprocessing(model, mutag, torch.arange(9)) for _ in range(2))
    assert first.encodings[COLOURS] is second.encodings[COLOURS]
    changed = replace(mutag, name="another")
    assert fit_preprocessing(model, changed, torch.arange(9)).encodings[COLOURS] is not first.encodings[COLOURS]
