"""The models that benchmarks run beside ours: the twin is our model, and each of them trains."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import generator, random_batch
from torch import Tensor, nn

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import GraphModel
from mnagt.runs.config import TrainConfig
from mnagt.tasks import SingleLabel

pytest.importorskip("torch_geometric")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import epoch  # type: ignore[import-not-found]
import peers  # type: ignore[import-not-found]
from torch_geometric.data import Batch

SIZES = [1, 13, 2, 31, 7, 1, 17]
LABELS = 37


def graphs_like_nci1(seed: int = 0, *, are_labelled: bool = True) -> PackedDataset:
    """Sparse graphs, single nodes among them, with one label a node or none."""
    batch = random_batch(SIZES, 0.15, seed)
    labels = torch.randint(0, LABELS, (batch.num_nodes, 1), generator=generator(seed)) if are_labelled else None
    columns: dict[str, Any] = {"node_labels": labels, "targets": torch.arange(len(SIZES)) % 2}
    built = type(batch).from_edges(batch.edge_index, batch.sizes, **columns)
    counts = {"node_labels": (LABELS,)} if are_labelled else {}
    dataset = PackedDataset.from_batch("like NCI1", SingleLabel(("no", "yes")), built, label_counts=counts)
    return with_encodings(dataset, {"wl-colours": 4} if are_labelled else {"wl-colours": 1, "ego-statistics": 1})


def our_model(dataset: PackedDataset, seed: int = 0) -> GraphModel:
    """With branches that speak up, so that a difference would be heard."""
    torch.manual_seed(seed)
    settings = {"depth": peers.DEPTH, "max_hop": peers.MAX_HOP, "layer_scale": 1.0, "dropout": 0.0, "wl_dropout": 0.0}
    return build_model("mnagt", settings, dataset.features, dataset.task.num_outputs)


def collated(dataset: PackedDataset, reads: tuple[str, ...]) -> Any:
    return Batch.from_data_list(peers.pyg_list(dataset, extra=reads))  # type: ignore[arg-type]


def gradients(model: nn.Module, output: Tensor) -> list[Tensor]:
    grads = torch.autograd.grad(output.square().sum(), list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if grad is None else grad for grad in grads]


@pytest.mark.parametrize("are_labelled", [True, False], ids=["labels", "degrees"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_twin_is_our_model(training: bool, are_labelled: bool):
    dataset = graphs_like_nci1(are_labelled=are_labelled)
    model = our_model(dataset).double().train(training)
    twin = peers.Padded(model).train(training)
    ours, theirs = dataset.batch(torch.arange(len(SIZES))), collated(dataset, twin.reads)
    assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}
    one, other = model(ours), twin(theirs)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(gradients(model, one), gradients(model, other))


def test_the_twin_trains_as_ours():
    split = Split(torch.arange(5), torch.tensor([5]), torch.tensor([6]))
    config = TrainConfig(epochs=3, batch_size=3)
    given = {"settings": {"wl_dropout": 0.0}, "dtype": torch.float64}
    contest = epoch.Contest(graphs_like_nci1(), split, config, "cpu", **given)
    ours, twin = contest.variant("mnagt"), contest.variant("padded")
    for _ in range(config.epochs):
        assert ours.epoch() == pytest.approx(twin.epoch(), rel=1e-6)


@pytest.mark.parametrize("are_labelled", [True, False], ids=["labels", "degrees"])
@pytest.mark.parametrize("name", peers.PEERS)
def test_every_peer_trains(name: str, are_labelled: bool):
    dataset = graphs_like_nci1(are_labelled=are_labelled)
    torch.manual_seed(0)
    model = peers.PEERS[name](LABELS if are_labelled else 0, dataset.task.num_outputs)
    output = model(collated(dataset, model.reads))
    assert output.shape == (len(SIZES), dataset.task.num_outputs)
    dataset.task.loss(output, dataset.targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", peers.PEERS)
def test_company_in_a_batch_does_not_matter_to_peers(name: str):
    """Padding and pairs stay within a graph."""
    dataset = graphs_like_nci1()
    torch.manual_seed(0)
    model = peers.PEERS[name](LABELS, dataset.task.num_outputs).eval()
    graphs = peers.pyg_list(dataset, extra=model.reads)
    with torch.no_grad():
        together = model(Batch.from_data_list(graphs))  # type: ignore[arg-type]
        alone = torch.cat([model(Batch.from_data_list([graph])) for graph in graphs])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
