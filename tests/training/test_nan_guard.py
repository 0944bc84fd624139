"""Numbers that are not finite end a run within a step, and spoil nothing that is kept."""

from dataclasses import replace

import pytest
import torch
from strategies import generator
from torch import nn

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import random_split
from mnagt.errors import InputError
from mnagt.files import read_json
from mnagt.inference.weights import load_tensors, select_prefix
from mnagt.models.registry import build_model
from mnagt.ops.adamw import FlatAdamW
from mnagt.runs.config import TrainConfig
from mnagt.training.nan_guard import are_finite
from mnagt.training.optim import ClippedAdamW
from mnagt.training.trainer import NOT_FINITE, Trainer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = TrainConfig(epochs=2, batch_size=16, checkpoint_seconds=0)
SPOILT = 77


@pytest.fixture(scope="module")
def mutag() -> PackedDataset:
    """Molecules with a value at each node."""
    mutag = load_dataset("MUTAG")
    return replace(mutag, node_values=torch.randn(int(mutag.node_ptr[-1]), 1, generator=generator(0)))


def spoilt(dataset: PackedDataset, value: float, nodes: int) -> PackedDataset:
    """The first ``nodes`` nodes of one graph hold a value that is finite, and too large to reckon with."""
    values = dataset.node_values
    assert values is not None
    values = values.clone()
    start = int(dataset.node_ptr[SPOILT])
    values[start : start + nodes] = value
    return replace(dataset, node_values=values)


def trainer(dataset: PackedDataset, config: TrainConfig, checkpoint=None, device: str = "cpu") -> Trainer:
    torch.manual_seed(0)
    model = build_model("gin", {"dim": 8, "depth": 2}, dataset.features, dataset.task.num_outputs)
    split = random_split(len(dataset), 0)
    assert SPOILT in split.train
    return Trainer(model, dataset, split, dataset.task, config, device=device, checkpoint=checkpoint)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_an_overflow_stops_the_run_at_its_step_and_names_its_graphs(mutag, precision, device, tmp_path):
    run = trainer(spoilt(mutag, 3e38, 5), replace(CONFIG, precision=precision), tmp_path / "last", device)
    with pytest.raises(InputError, match=rf"epoch 1, step \d+: the loss is .*nan.* in {precision}; begin") as said:
        run.run()
    assert ("train in fp32" in str(said.value)) == (precision == "bf16")
    told = read_json(tmp_path / NOT_FINITE)
    order = torch.Generator().manual_seed(0)
    batches = [sorted(b.tolist()) for b in mutag.batch_indices(run.split.train, 16, order)]
    step = next(number for number, graphs in enumerate(batches, 1) if SPOILT in graphs)
    assert (told["epoch"], told["step"], sorted(told["graphs"])) == (1, step, batches[step - 1])
    assert f"epoch 1, step {step}:" in str(said.value)
    assert step > 1
    assert "head.0.weight" in told["parameters"]
    tensors, position = load_tensors(tmp_path / "last")
    assert position["step"] == step - 1
    assert are_finite(tensors)
    kept = select_prefix("model/", tensors)
    for name, p in run.model.named_parameters():
        assert torch.equal(p.cpu(), kept[name]), name


def test_weights_that_run_away_are_stopped(mutag):
    with pytest.raises(InputError, match=r"epoch 1, step 2: .* lower lr \(now 1e\+30\)"):
        trainer(mutag, replace(CONFIG, lr=1e30, warmup=0.0, clip=0.0)).run()


def test_a_statistic_that_overflows_is_never_kept(mutag, tmp_path):
    """The norm's variance is infinite, so the value counts for nothing, and the loss shows nothing."""
    run = trainer(spoilt(mutag, 1e25, 1), CONFIG, tmp_path / "last")
    with pytest.raises(InputError, match="a weight or a statistic is not finite after it"):
        run.run()
    told = read_json(tmp_path / NOT_FINITE)
    assert told["parameters"] == ["encoder.columns.values.standardise.running_var"]
    assert SPOILT in told["graphs"]
    assert are_finite(load_tensors(tmp_path / "last")[0])


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize(("gradient", "loss"), [(torch.inf, 1.0), (torch.nan, 1.0), (1.0, torch.inf), (1.0, torch.nan)])
@pytest.mark.parametrize("kind", ["clipped", "flat"])
def test_from_a_bad_step_on_none_is_taken(kind, gradient, loss, clip):
    torch.manual_seed(0)
    model = nn.Linear(3, 5).to(DEVICE)
    rate = torch.tensor(0.1, device=DEVICE)
    groups = [{"params": [p], "weight_decay": 0.1} for p in model.parameters()]
    if kind == "flat":
        optimizer = FlatAdamW(groups, rate, clip=clip)
    else:
        optimizer = ClippedAdamW(groups, lr=rate, clip=clip, capturable=DEVICE == "cuda")
    seen = []
    for bad in (False, True, False):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        if bad:
            model.weight.grad[2, 1] = gradient  # type: ignore[index]
        before = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            optimizer.step(loss=torch.tensor(loss if bad else 1.0))
        has_moved = not torch.equal(before[0], model.weight)
        assert torch.isfinite(model.weight).all()
        seen.append((has_moved, bool(optimizer.seen[0])))
    assert seen == [(True, False), (False, True), (False, True)]
