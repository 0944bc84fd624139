"""Recorded and replayed, a step does what it does eagerly."""

import gc
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import random_split
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.padding import Shape
from mnagt.inference.outputs import compute_outputs
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.ops.cuda_graphs import _pause_garbage_collection
from mnagt.runs.config import TrainConfig
from mnagt.tasks import Regression
from mnagt.training.cuda_graphs import CapturedOutputs, CapturedSteps
from mnagt.training.trainer import Trainer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CONFIG = TrainConfig(epochs=3, batch_size=32, warmup=0.2, selection_window=1)
SLOW = replace(CONFIG, lr=1e-4, precision="fp32")
"""Small steps, multiplied in full: rounding has no time to drive two runs apart."""


@pytest.fixture(scope="module")
def mutag():
    return load_dataset("MUTAG")


def trainer(mutag, model: str, config: TrainConfig, settings: dict | None = None, **options) -> Trainer:
    certain = {name: 0.0 for name in full_settings(model, {}) if name.endswith("dropout")} | CHANCE.get(model, {})
    torch.manual_seed(0)
    built = build_model(model, certain | (settings or {}), mutag.features, 2)
    graphs = with_encodings(mutag, built.encodings)
    return Trainer(built, graphs, random_split(len(mutag), 0), mutag.task, config, device="cuda", **options)


def vector(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


FITTED = {name for name, entry in MODELS.items() if entry.is_fitted_by_sklearn}
PAIRWISE = {"graphormer", "graphit", "grpe", "gophormer", "san"}
"""Models that work on pairs of nodes ask the CPU for the sizes of graphs: they are not recorded."""
CHANCE = {"gt": {"laplacian": 0}, "grover": {"spread": 0}}
"""What is drawn at random besides dropout, off."""
VARIANTS = [("mnagt", {"attention": "cosine"}), ("mnagt", {"conv": "gcne"}), ("graphtrans", {"virtual": True})]


@needs_gpu
@pytest.mark.parametrize(
    ("model", "settings"), [*((name, {}) for name in sorted(MODELS.keys() - PAIRWISE - FITTED)), *VARIANTS], ids=str
)
def test_losses_and_weights_are_those_of_eager_steps(mutag, model, settings):
    recorded, eager = (trainer(mutag, model, replace(SLOW, cuda_graphs=mode), settings) for mode in ("auto", "never"))
    start = vector(eager.model)
    told = [run.run().history for run in (recorded, eager)]
    assert recorded._is_captured
    for one, other in zip(*told, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
    apart, way = vector(recorded.model) - vector(eager.model), vector(eager.model) - start
    assert apart.norm() < 0.2 * way.norm()


@needs_gpu
def test_the_same_seed_gives_the_same_weights(mutag):
    runs = [trainer(mutag, "mnagt", CONFIG) for _ in range(2)]
    for run in runs:
        run.run()
    torch.testing.assert_close(*(run.model.state_dict() for run in runs), rtol=0, atol=0)


@needs_gpu
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


@needs_gpu
def test_what_cannot_be_recorded_runs_eagerly(mutag, caplog):
    run = trainer(mutag, "gin", replace(CONFIG, epochs=1))
    plain = run._update
    run._update = lambda batch: (plain(batch), run.model(batch).sum().item())[0]  # waits for the GPU
    run.run()
    assert "not captured" in caplog.text


@needs_gpu
def test_garbage_of_an_earlier_training_does_not_break_a_recording(mutag, caplog):
    earlier, run = (trainer(mutag, "gin", replace(CONFIG, epochs=1)) for _ in range(2))
    earlier.run()
    knot: list = [earlier]
    knot.append(knot)  # only the collector can free it, and the graphs that were recorded
    last, plain = [knot], run._update
    del earlier, knot

    def update(batch):
        if torch.cuda.is_current_stream_capturing():
            last.clear()
            if gc.isenabled():  # it may run at any time
                gc.collect()
        return plain(batch)

    run._update = update
    run.run()
    assert "not captured" not in caplog.text


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_waits_and_is_left_as_it_was(is_enabled):
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with _pause_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()


@needs_gpu
def test_recorded_outputs_are_in_the_order_asked_for(mutag):
    run = trainer(mutag, "gin", CONFIG)
    asked = torch.tensor([7, 3, 5, 3])
    torch.testing.assert_close(
        CapturedOutputs(run.model, run.dataset, asked, 2)(), compute_outputs(run.model, run.dataset, asked, 2)
    )


def shapes(counts: list[int], batch_size: int) -> list[Shape]:
    """The usual shapes of batches of path graphs."""
    edges = [torch.arange(n - 1) + first for first, n in zip(accumulate([0, *counts]), counts, strict=False)]
    along = torch.cat(edges)
    graph = replace(GraphBatch.from_edges(torch.stack([along, along + 1]), counts), targets=torch.zeros(len(counts), 1))
    steps = CapturedSteps.__new__(CapturedSteps)
    steps.dataset, steps.batch_size = PackedDataset.from_batch("paths", Regression(("t",)), graph), batch_size
    return steps._ladder


def test_batches_that_are_alike_share_a_shape_and_others_have_a_few():
    assert len(shapes([19, 20, 21] * 50, 64)) == 1
    unlike = shapes([10] * 90 + [1000] * 10, 64)
    assert len(unlike) == 3
    assert all(large.holds(small) for large, small in pairwise(unlike))
