"""Descriptors beside the readout: standardised on the training part, whatever else is in the batch."""

from dataclasses import replace

import pytest
import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.padded_batches import NO_GRAPH, PaddedBatches
from mnagt.data.readers.smiles import read_smiles
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import MOLECULES, TABLE_DESCRIPTORS
from mnagt.graphs.padding import Shape
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.molecule_descriptors import MoleculeDescriptors

pytest.importorskip("rdkit")

SMILES = ["CCO", "c1ccccc1O", "CC(=O)[O-].[Na+]", "C", "CCCCN", "O=C1CCCN1", "Clc1ccccc1"]


def with_columns(*rows: list[float]) -> PackedDataset:
    """The molecules with columns of a table, in which each row is one of them."""
    dataset = read_smiles(SMILES[: len(rows)]).graphs
    values = torch.tensor(rows)[torch.repeat_interleave(torch.arange(len(dataset)), dataset.sizes)]
    return replace(dataset, encodings={TABLE_DESCRIPTORS: values})


def standard_values(readout: MoleculeDescriptors, dataset: PackedDataset) -> torch.Tensor:
    """What the linear map is given."""
    seen = []
    with readout.map.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        readout.prepare(torch.zeros(int(dataset.node_ptr[-1]), 3), dataset.batch(torch.arange(len(dataset))))
    return seen[0]


def test_numbers_are_standardised_and_bits_are_not():
    nan, readout = torch.nan, MoleculeDescriptors(3, ["temperature", "is_dry", "year", "ph"])
    dataset = with_columns([20, 1, 2026, 1], [30, 0, 2026, nan], [40, 0, 2026, 5])
    readout.fit_scaling([dataset.batch(torch.arange(3))])
    found = standard_values(readout, dataset)
    root = 1.5**0.5
    expected = [[-root, 1, 0, -1], [0, 0, 0, 0], [root, 0, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(expected))
    other = standard_values(readout, with_columns([1e9, 2, 1999, 3]))
    torch.testing.assert_close(other, torch.tensor([[10.0, 2, 0, 0]]))


def test_dropout_acts_in_training_and_follows_the_seed():
    dataset = read_smiles(SMILES).graphs
    batch = dataset.batch(torch.arange(len(SMILES)))
    none = {"dropout": 0.0, "wl_iterations": 0, "dim": 6, "depth": 1, "descriptors": ("morgan",)}
    for rate in (0.0, 0.5):
        network = build_model("mnagt", {**none, "descriptor_dropout": rate}, MOLECULES, 2).train()

        def predict(seed: int, network: GraphModel = network) -> torch.Tensor:
            torch.manual_seed(seed)
            return network(batch)

        assert torch.equal(predict(0), predict(0))
        assert torch.equal(predict(0), predict(1)) == (rate == 0.0)


@pytest.mark.parametrize("names", [("rdkit2d",), ("morgan",), ("rdkit2d", "morgan")])
@pytest.mark.parametrize(("model", "settings"), [("mnagt", {"head_dim": 5}), ("gin", {"readout": "virtual-node"})])
def test_a_molecule_does_not_see_its_batch(names, model, settings):
    torch.manual_seed(0)
    dataset = read_smiles(SMILES).graphs
    network = build_model(model, {"dim": 6, "depth": 1, "descriptors": names, **settings}, MOLECULES, 2)
    (readout,) = (part for part in network.modules() if isinstance(part, MoleculeDescriptors))
    readout.fit_scaling([dataset.batch(torch.arange(len(SMILES)))])
    network.eval()
    together = network(dataset.batch(torch.arange(len(SMILES))))
    alone = torch.cat([network(dataset.batch(torch.tensor([i]))) for i in range(len(SMILES))])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    graphs = torch.tensor([4, 0, 5, NO_GRAPH, NO_GRAPH])
    padded = PaddedBatches(dataset).batch(graphs, Shape(5, 31, 47))
    torch.testing.assert_close(network(padded)[:3], together[graphs[:3]], rtol=1e-4, atol=1e-5)
    without = build_model(model, {"dim": 6, "depth": 1, **settings}, MOLECULES, 2)
    assert network.parameter_count > without.parameter_count


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(InputError, match="RDKit computes rdkit2d of molecules"):
        build_model("gin", {"descriptors": ("rdkit2d",)}, Features(), 1)
    network = build_model("gin", {"dim": 6, "depth": 1, "descriptors": ("temperature", "ph")}, MOLECULES, 1)
    for dataset in (read_smiles(SMILES).graphs, with_columns([20.0], [30.0])):
        with pytest.raises(InputError, match="reads 2 columns of a table beside the graphs"):
            network(dataset.batch(torch.tensor([0, 1])))


def test_members_share_the_descriptors_of_a_molecule(monkeypatch):
    from mnagt.graphs import encodings

    calls, compute = [], encodings.ENCODINGS["rdkit-descriptors"]
    monkeypatch.setitem(encodings.ENCODINGS, "rdkit-descriptors", lambda *args: calls.append(args) or compute(*args))
    model = build_model("mnagt-ensemble", {"dim": 6, "depth": 1, "member_trees": 2}, MOLECULES, 1).eval()
    dataset = read_smiles(SMILES).graphs
    model(dataset.batch(torch.arange(len(SMILES))))
    assert len(calls) == 1
