"""Recorded and replayed, a step does what it does eagerly."""

from dataclasses import replace

import pytest
import torch

from mnagt.data import load_dataset
from mnagt.data.splits import random_split
from mnagt.models import MODELS, build_model, full_settings
from mnagt.training.config import TrainConfig
from mnagt.training.fit import Trainer, outputs
from mnagt.training.recorded import RecordedOutputs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CONFIG = TrainConfig(epochs=3, batch_size=32, warmup=0.2, choose_over=1)


@pytest.fixture(scope="module")
def mutag():
    return load_dataset("MUTAG")


def trainer(mutag, model: str, config: TrainConfig, **options) -> Trainer:
    settings = {name: 0.0 for name in full_settings(model, {}) if name.endswith("dropout")}
    torch.manual_seed(0)
    built = build_model(model, settings | CHANCE.get(model, {}), mutag.features, 2)
    return Trainer(built, mutag, random_split(len(mutag), 0), mutag.task, config, device="cuda", **options)


PAIRWISE = {"graphormer", "graphit", "grpe", "gophormer", "san"}
"""Models that work on pairs of nodes ask the CPU for the sizes of graphs: they are not recorded."""
CHANCE = {"gt": {"laplacian": 0}, "grover": {"spread": 0}}
"""What is drawn at random besides dropout, off."""


@pytest.mark.parametrize("model", sorted(MODELS.keys() - PAIRWISE))
def test_losses_and_scores_are_those_of_eager_steps(mutag, model):
    recorded, eager = (trainer(mutag, model, replace(CONFIG, record=record)) for record in ("auto", "never"))
    told = [run.run().history for run in (recorded, eager)]
    assert recorded._take == recorded._take_recorded
    for one, other in zip(*told, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=5e-3)


def test_the_same_seed_gives_the_same_weights(mutag):
    runs = [trainer(mutag, "mnagt", CONFIG) for _ in range(2)]
    for run in runs:
        run.run()
    torch.testing.assert_close(*(run.model.state_dict() for run in runs), rtol=0, atol=0)


def test_an_interrupted_run_goes_on(mutag, tmp_path):
    whole = trainer(mutag, "mnagt", CONFIG)
    whole.run()
    cut = trainer(mutag, "mnagt", CONFIG, checkpoint=tmp_path / "last.safetensors")
    cut.config = replace(CONFIG, epochs=2)
    cut.steps_per_epoch, cut._rate = whole.steps_per_epoch, whole._rate
    cut.run()
    rest = trainer(mutag, "mnagt", CONFIG, checkpoint=tmp_path / "last.safetensors")
    history = rest.run().history
    assert [record["loss"] for record in history] == pytest.approx(
        [record["loss"] for record in whole.at.history], rel=1e-4
    )


def test_what_cannot_be_recorded_runs_eagerly(mutag, caplog):
    run = trainer(mutag, "gin", replace(CONFIG, epochs=1))
    plain = run._update
    run._update = lambda batch: (plain(batch), run.model(batch).sum().item())[0]  # waits for the GPU
    run.run()
    assert "not recorded" in caplog.text


def test_recorded_outputs_are_in_the_order_asked_for(mutag):
    run = trainer(mutag, "gin", CONFIG)
    asked = torch.tensor([7, 3, 5, 3])
    torch.testing.assert_close(
        RecordedOutputs(run.model, run.dataset, asked, 2)(), outputs(run.model, run.dataset, asked, 2)
    )
