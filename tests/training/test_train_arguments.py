"""``train`` takes what people have: names, graphs of other libraries, modules; and settings by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_mean_pool

from mnagt import from_graphs, load_dataset, load_model, resume, to_pyg, train
from mnagt.cli import main
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.models.registry import MODELS
from mnagt.nn.module_model import DenseColumns, ModuleModel
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.folder import read_run_config
from mnagt.runs.options import apply_options
from mnagt.runs.recipes import read_recipe

QUICK: dict[str, Any] = {"epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def mutag() -> PackedDataset:
    return load_dataset("MUTAG")


@pytest.fixture(scope="module")
def pyg(mutag) -> list[Any]:
    """The graphs as those of ``TUDataset``: one-hot columns."""
    graphs = to_pyg(mutag.batch(torch.arange(len(mutag)))).to_data_list()
    for graph in graphs:
        graph.x = nn.functional.one_hot(graph.x[:, 0].long(), 7).float()
        graph.edge_attr = nn.functional.one_hot(graph.edge_attr[:, 0].long(), 4).float()
    return graphs


class Net(nn.Module):
    """As in the examples of PyTorch Geometric."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.conv, self.out = GCNConv(width, 8), nn.Linear(8, 2)

    def forward(self, x, edge_index, batch):
        return self.out(global_mean_pool(self.conv(x, edge_index).relu(), batch))


class DataNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, data):
        assert data.edge_attr.shape[1] == 4
        return self.net(data.x, data.edge_index, data.batch)


class BatchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 2)

    def forward(self, graph: GraphBatch):
        assert graph.node_labels is not None
        return graph.nodes_of @ self.table(graph.node_labels[:, 0].long())


# Data


def test_a_data_set_a_list_of_pyg_graphs_and_a_config_train_the_same_model(mutag, pyg):
    settings: dict[str, Any] = {"dim": 8, "depth": 1, "wl_iterations": 2}
    config = RunConfig("MUTAG", "mnagt", settings, TrainConfig(epochs=2, batch_size=32), device="cpu")  # by the rule
    runs = [
        train(config, dataset=mutag),
        train(mutag, epochs=2, device="cpu", **settings),
        train(pyg, epochs=2, device="cpu", **settings),
        train(dataset=pyg, recipe="none", epochs=2, device="cpu", **settings),
    ]
    first = runs[0]
    for run in runs[1:]:
        assert run.history == first.history
        assert run.trained.settings == first.trained.settings
        assert run.trained.predict(pyg[:3])["p(1)"] == first.trained.predict(mutag, torch.arange(3))["p(1)"]
    assert len(runs[2].trained.predict(pyg[0])["prediction"]) == 1
    assert runs[0].trained.predict(pyg[5]) == runs[0].trained.predict(mutag, torch.tensor([5]))


def test_graphs_of_networkx_are_trained_on_and_one_is_predicted():
    graphs = [nx.cycle_graph(n) for n in range(3, 13)] + [nx.path_graph(n) for n in range(3, 13)]
    for number, graph in enumerate(graphs):
        graph.graph["y"] = "ring" if number < 10 else "path"
    trained = train(graphs, model="gin", dim=8, depth=1, **QUICK).trained
    assert trained.predict(graphs[0])["p(ring)"] == pytest.approx(trained.predict(graphs)["p(ring)"][:1])
    with pytest.raises(InputError, match="no targets to learn from; give them: from_graphs"):
        train([nx.cycle_graph(n) for n in range(3, 13)], **QUICK)
    weights = [nx.cycle_graph(n) for n in range(3, 13)]
    for number, graph in enumerate(weights):
        graph.graph["weight"] = number / 3
    assert train(weights, model="gin", dim=8, target="weight", **QUICK).result.metric == "rmse"


# Settings


def test_python_and_the_command_line_train_a_named_data_set_with_the_same_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text("[models.gin]\nsettings.dim = 8\ntrain.lr = 0.003\nsettings.depth = 1\n")
    monkeypatch.setattr("mnagt.runs.recipes._shipped_file", lambda dataset: Path("recipe.toml"))
    options = ["--epochs", "2", "--split", "stratified", "--split-fold", "3", "--device", "cpu"]
    assert main(["train", "MUTAG", "--model", "gin", *options, "--out", "cli"]) == 0
    train("MUTAG", "python", model="gin", epochs=2, split="stratified", split_fold=3, device="cpu")
    config = read_run_config(Path("cli"))
    assert (config, config.train.lr) == (read_run_config(Path("python")), 0.003)
    logs = [Path(run, "metrics.jsonl").read_text().splitlines() for run in ("cli", "python")]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]


def test_settings_go_by_the_names_of_options_and_override_the_recipe():
    base = read_recipe("nci1/gin")
    changed = apply_options(base, {"epochs": 3, "lr": 1, "dim": 8, "split_seed": 5, "target": "y"})
    assert changed.train == replace(base.train, epochs=3, lr=1.0)
    assert (changed.settings["dim"], changed.split.seed, changed.targets) == (8, 5, ("y",))
    assert apply_options(base, {"model": "gcn"}).settings == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"epoch": 3}, "no setting 'epoch'; did you mean 'epochs'"),
        ({"split_sed": 3}, "no setting 'split_sed'; did you mean 'split_seed'"),
        ({"model": "gim"}, "no model 'gim'; did you mean 'gin'"),
        ({"epochs": "3"}, "epochs: expected a whole number, got '3'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"model": "gin", "dims": 8}, "no setting 'dims'; did you mean 'dim'"),
        ({"dataset": "NCI1"}, "train takes one data set"),
    ],
)
def test_a_wrong_setting_is_named_with_the_nearest(arguments, told):
    with pytest.raises(InputError, match=told):
        train("MUTAG", **arguments)


def test_a_config_has_its_recipe_already():
    with pytest.raises(InputError, match="a RunConfig holds all settings"):
        train(RunConfig("MUTAG"), recipe="nci1/gin")


# Modules


@pytest.mark.parametrize("make", [Net, DataNet, BatchNet])
def test_a_module_is_trained_in_place_saved_loaded_and_resumed(make, pyg, tmp_path):
    module = make()
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    run = train(pyg, tmp_path / "run", model=module, lr=0.1, **QUICK)
    assert any(not weight.equal(before[name]) for name, weight in module.state_dict().items())
    assert make.__name__ not in MODELS
    loaded = load_model(tmp_path / "run", model=make())
    assert loaded.predict(pyg[:3]) == run.trained.predict(pyg[:3])
    assert resume(tmp_path / "run", dataset=pyg, model=make()).result.test == run.result.test
    with pytest.raises(InputError, match=rf"it is for the module '\S*\.{make.__name__}', .*load_model\(folder, model="):
        load_model(tmp_path / "run")


@pytest.mark.parametrize("edges", [True, False])
def test_a_module_reads_named_data_sets_as_one_hot_columns(edges, mutag, tmp_path):
    data = mutag if edges else replace(mutag, edge_labels=None, label_counts={"node_labels": (7,)})
    run = train("MUTAG" if edges else data, tmp_path / "run", model=Net(), **QUICK)
    model: Any = run.trained.model
    x = model.node_columns(data.node_labels[:5], None)
    assert x.equal(nn.functional.one_hot(data.node_labels[:5, 0].long(), 7).float())


class Wrong(nn.Linear):
    def forward(self, x, edge_index, positions):  # type: ignore[override]
        return x


class Flat(Net):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch)[:, 0]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Wrong(2, 3), "Wrong.forward asks for 'positions'; it can ask for x, edge_index, batch, edge_attr"),
        (Flat(), r"Flat returns shape \(\d+,\) for \d+ graphs; the task needs \[graphs, 2\]"),
        (nn.Identity(), "Identity has no parameters to learn"),
    ],
)
def test_a_module_that_does_not_fit_is_told(module, told, pyg):
    with pytest.raises(InputError, match=told):
        train(pyg, model=module, **QUICK)


def test_a_module_has_no_settings_of_a_model_and_no_embeddings(pyg):
    with pytest.raises(InputError, match="no setting 'dim'"):
        train(pyg, model=Net(), dim=8)
    with pytest.raises(InputError, match="Net is a module of your own, whose layers are not known"):
        train(pyg, model=Net(), activation_checkpointing=True, **QUICK)


def test_a_module_gets_x_as_the_graphs_had_it():
    x = torch.tensor([[0, 0.5, 0, 0, 1], [0, 1.5, 1, 0, 0], [0, 2.5, 1, 0, 0]])  # categories 2 and 4; 3 never occurs
    dataset = from_graphs([Data(x=x, edge_index=torch.tensor([[0, 1], [1, 2]]), edge_attr=torch.tensor([5, 7]))])
    assert dataset.features.nodes.labels == (2,)
    model = ModuleModel(Net(5), dataset.features, 2)
    model.fit_columns(dataset.columns, dataset.vocabularies)
    batch = dataset.batch(torch.tensor([0]))
    assert model.node_columns(batch.node_labels, batch.node_values).equal(x)
    assert model.edge_columns(batch.edge_labels, batch.edge_values).tolist() == [[5], [7]]
    assert DenseColumns(dataset.features.nodes)(batch.node_labels, batch.node_values).shape == (3, 4)


# What is printed


def test_reprs_have_three_lines(mutag):
    run = train(mutag, model="gin", dim=8, depth=1, **QUICK)
    for thing in (mutag, mutag.batch(torch.tensor([0, 3])), run, run.trained):
        assert len(repr(thing).splitlines()) == 3
        assert max(map(len, repr(thing).splitlines())) < 120
