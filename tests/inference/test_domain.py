"""Graphs unlike those of the training are told by their distance, whatever the model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from mnagt import Ensemble, load_dataset, load_model, predict, train
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.inference.domain import Domain, count_wl_colours, fit_domain
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.weights import load_tensors, save_tensors
from mnagt.tasks import Unlabelled
from mnagt.training.run import Run

SMALL = {"epochs": 2, "dim": 16, "depth": 2, "device": "cpu"}


class Net(nn.Module):
    """A module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def forward(self, graph: GraphBatch) -> torch.Tensor:
        return self.linear(graph.sizes[:, None].float())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("domain") / "run"
    return train("MUTAG", folder, model="gin", **SMALL), folder


def strange() -> PackedDataset:
    """A graph of 60 nodes in which every second pair has an edge: no molecule of MUTAG is like it."""
    pairs = torch.combinations(torch.arange(60)).T[:, ::2]
    edges = torch.cat([pairs, pairs.flip(0)], dim=1)
    nodes, kinds = torch.arange(60)[:, None] % 7, edges.sum(dim=0)[:, None] % 4
    batch = GraphBatch.from_edges(edges, [60], node_labels=nodes, edge_labels=kinds, targets=torch.zeros(1, 0))
    return PackedDataset.from_batch("strange", Unlabelled(), batch)


def distances(trained: TrainedModel, graphs: PackedDataset, some: torch.Tensor | None = None) -> torch.Tensor:
    found = trained.outputs_with_distances(graphs, some)[1]
    assert found is not None
    return found


def test_validation_graphs_set_the_scale(run):
    (finished, _), mutag = run, load_dataset("MUTAG")
    held_out = distances(finished.trained, mutag, finished.split.valid)
    assert (held_out <= 1 + 1e-5).float().mean() >= 0.95
    assert held_out.max() == pytest.approx(1, rel=1e-4)  # 19 graphs: 95 % are all of them
    assert distances(finished.trained, mutag, finished.split.train).median() < held_out.median()
    assert distances(finished.trained, strange()) > 2


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gin"},
        {"model": "mnagt"},
        {"model": "mnagt", "forest_trees": 3, "forest_max_leaves": 4},
        {"model": "mnagt-wl"},
        {"model": "sagpool"},
        {"model": "counts", "depth": None},
        {"model": "wl-linear", "depth": None, "dim": None, "epochs": None},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_distances_come_with_the_same_outputs_in_any_batch(settings, tmp_path):
    options = {name: value for name, value in {**SMALL, **settings}.items() if value is not None}
    train("MUTAG", tmp_path / "run", recipe="none", **options)
    trained, mutag, some = load_model(tmp_path / "run"), load_dataset("MUTAG"), torch.arange(40)
    output, together = trained.outputs_with_distances(mutag, some)
    torch.testing.assert_close(output, trained.outputs(mutag, some), rtol=1e-4, atol=1e-5)
    assert together is not None
    for graph in (0, 17):
        torch.testing.assert_close(
            distances(trained, mutag, torch.tensor([graph])), together[[graph]], rtol=1e-3, atol=1e-4
        )
    assert distances(trained, strange()) > 1
    assert distances(trained, mutag, some[:0]).shape == (0,)


def test_a_module_of_ones_own_has_distances_by_wl_colours():
    trained = train("MUTAG", model=Net(), epochs=1, device="cpu").trained
    assert trained.domain is not None
    assert trained.domain.kind == "wl-counts"
    assert distances(trained, strange()) > 1


def test_wl_counts_are_those_of_each_graph_alone():
    mutag = load_dataset("MUTAG")
    both = count_wl_colours(mutag.batch(torch.tensor([3, 5])))
    for row, graph in enumerate((3, 5)):
        torch.testing.assert_close(both[[row]], count_wl_colours(mutag.batch(torch.tensor([graph]))))
    assert both.expm1().sum(dim=1).tolist() == pytest.approx([3 * n for n in mutag.sizes[[3, 5]].tolist()])


def test_an_ensemble_averages_the_distances_of_its_members(run):
    (finished, _), mutag, some = run, load_dataset("MUTAG"), torch.arange(20)
    other = train("MUTAG", model="gin", seed=1, **SMALL).trained
    ensemble = Ensemble.of([finished.trained, other])
    expected = (distances(finished.trained, mutag, some) + distances(other, mutag, some)) / 2
    torch.testing.assert_close(distances(ensemble, mutag, some), expected)
    joint = ensemble.predictor(20, with_distances=True)(mutag.batch(some))
    torch.testing.assert_close(joint[:, 0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(joint[:, 1:], ensemble.outputs(mutag, some), rtol=1e-4, atol=1e-5)
    assert list(ensemble.predict(mutag, some))[-1] == "distance"
    assert "distance" not in Ensemble.of([finished.trained, replace(other, domain=None)]).predict(mutag, some)


def test_the_folder_keeps_the_domain_and_can_go_without(run, tmp_path):
    finished, _ = run
    mutag, folder = load_dataset("MUTAG"), tmp_path / "model"
    finished.trained.save_pretrained(folder)
    torch.testing.assert_close(distances(load_model(folder), mutag), distances(finished.trained, mutag))
    assert predict(folder, "MUTAG", graphs=[4])["distance"] == distances(finished.trained, mutag)[[4]].tolist()
    (folder / "domain.safetensors").unlink()
    assert list(predict(folder, "MUTAG", graphs=[4])) == ["graph", "prediction", "p(-1)", "p(1)"]


DAMAGE = {
    "another model": lambda tensors, note: note.update(weights="0"),
    "no note": lambda tensors, note: note.clear(),
    "a limit of zero": lambda tensors, note: note.update(limit=0.0),
    "a limit that is none": lambda tensors, note: note.update(limit="x"),
    "another kind": lambda tensors, note: note.update(kind="thumb"),
    "a column less": lambda tensors, note: tensors.update(center=tensors["center"][1:]),
    "no graphs": lambda tensors, note: tensors.update(reference=tensors["reference"][:2]),
    "not finite": lambda tensors, note: tensors["reference"].fill_(torch.nan),
    "a matrix": lambda tensors, note: tensors.update(scale=tensors["scale"][None]),
    "bins that are none": lambda tensors, note: note.update(bins=[1]),
    "bins without end": lambda tensors, note: note["bins"]["nodes"].update(counts=[float("inf")]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_of_the_model_is_refused(run, tmp_path, damage):
    finished, _ = run
    finished.trained.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "domain.safetensors"
    tensors, note = load_tensors(path)
    DAMAGE[damage](tensors, note)
    save_tensors(path, tensors, note)
    with pytest.raises(InputError, match=r"domain\.safetensors: (of another model|damaged); restore it, or delete it"):
        load_model(tmp_path / "model")


def test_with_fewer_training_graphs_than_neighbours_there_is_no_domain(run):
    (finished, _), mutag = run, load_dataset("MUTAG")
    split = replace(finished.split, train=finished.split.train[:4])
    assert fit_domain(finished.trained.model, mutag, split) is None
    assert isinstance(fit_domain(finished.trained.model, mutag, finished.split), Domain)
