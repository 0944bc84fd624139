"""A network, a Morgan forest and boosted descriptors, each fitted by itself, and their mean."""

import gzip
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mnagt import RunConfig, TrainConfig, load_model, train
from mnagt.cli import main
from mnagt.data.registry import load_dataset
from mnagt.graphs.molecules import MOLECULES
from mnagt.models.mnagt_ensemble import MEMBERS, MnagtEnsembleConfig
from mnagt.models.registry import build_model
from mnagt.nn.joined_model import JoinedModel
from mnagt.training.fit_members import choose_weights, list_weights

pytestmark = pytest.mark.real_data
TINY: dict[str, Any] = {"dim": 8, "depth": 1, "head_dim": 4, "member_trees": 3}


@pytest.fixture(scope="module")
def table(data_root, tmp_path_factory) -> Path:
    """Some molecules of ogbg-molbbbp."""
    path = tmp_path_factory.mktemp("tables") / "bbbp.csv"
    with gzip.open(data_root / "ogbg_molbbbp" / "mapping" / "mol.csv.gz", "rt") as file:
        path.write_text("".join(line for line, _ in zip(file, range(81), strict=False)))
    return path


@pytest.fixture(scope="module")
def config(table) -> RunConfig:
    return RunConfig(str(table), "mnagt-ensemble", TINY, TrainConfig(epochs=2, batch_size=64), device="cpu")


def test_the_members_are_the_models_of_their_names(config):
    dataset = load_dataset(config.dataset)  # which keeps descriptors for all three
    run = train(config, dataset=dataset)
    model = run.trained.model
    assert isinstance(model, JoinedModel)
    parts = model.outputs_of_members(lambda: run.trained.outputs(dataset).softmax(dim=1))
    forest = train(replace(config, model="morgan-forest", settings={"num_trees": 3}), dataset=dataset)
    torch.testing.assert_close(parts["morgan-forest"], forest.trained.outputs(dataset).softmax(dim=1))
    settings = {"num_iterations": 3, "learning_rate": 1.0}
    boosting = train(replace(config, model="descriptor-boosting", settings=settings), dataset=dataset)
    torch.testing.assert_close(parts["descriptor-boosting"], boosting.trained.outputs(dataset).softmax(dim=1))
    whole = sum(weight * part for weight, part in zip(model.weights.tolist(), parts.values(), strict=True))
    torch.testing.assert_close(run.trained.outputs(dataset).softmax(dim=1), whole)
    assert model.weights.sum().item() == pytest.approx(1)


def test_a_table_of_molecules_trains_it_by_default_and_other_commands_take_it(table, tmp_path, capsys):
    run, other = tmp_path / "run", tmp_path / "other"
    words = [word for name, value in TINY.items() for word in ("--" + name.replace("_", "-"), str(value))]
    assert main(["train", str(table), *words, "--epochs", "1", "--device", "cpu", "--out", str(run)]) == 0
    trained = load_model(run)
    assert trained.name == "mnagt-ensemble"
    assert main(["calibrate", str(run), "--device", "cpu"]) == 0
    assert main(["predict", str(run), str(table), "--out", str(tmp_path / "out.csv"), "--device", "cpu"]) == 0
    page = tmp_path / "page.html"
    assert main(["explain", str(run), str(table), "--graphs", "0", "--out", str(page)]) == 0
    assert "the mean of the models of trees is part of the prediction" in capsys.readouterr().out
    assert "The prediction is the mean of network" in page.read_text()
    assert isinstance(trained.model, JoinedModel)
    trained.model.weights.copy_(torch.tensor([0.0, 0.5, 0.5]))
    trained.save(tmp_path / "trees")
    assert main(["explain", str(tmp_path / "trees"), str(table), "--graphs", "0", "--out", str(page)]) == 0
    assert "all colours are zero: the network has no weight here" in capsys.readouterr().out
    assert main(["export", str(run), "--format", "torch"]) == 2
    assert "reads fingerprints or descriptors" in capsys.readouterr().err
    words = ["--epochs", "1", "--lr", "0", "--device", "cpu", "--out", str(other)]
    assert main(["train", str(table), "--from", str(run), *words]) == 0
    again = load_model(other)
    assert again.name == "mnagt-ensemble"
    assert isinstance(again.model, JoinedModel)
    assert isinstance(trained.model, JoinedModel)
    weights = trained.model.network.head.state_dict()
    assert all(torch.equal(weights[name], each) for name, each in again.model.network.head.state_dict().items())


def test_the_network_is_alone_where_trees_cannot_be_fitted(data_root, tmp_path, caplog):
    with gzip.open(data_root / "ogbg_molesol" / "mapping" / "mol.csv.gz", "rt") as file:
        (tmp_path / "esol.csv").write_text("".join(line for line, _ in zip(file, range(81), strict=False)))
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "esol.csv", uncertainty="mean-variance", epochs=1, device="cpu", **TINY)
    assert "the network is trained alone" in caplog.text
    assert (run.trained.name, run.trained.settings["members"]) == ("mnagt-ensemble", [])
    assert not isinstance(run.trained.model, JoinedModel)
    tiny = {name: value for name, value in TINY.items() if name != "member_trees"}
    source, target = tmp_path / "source", "measured log solubility in mols per litre"
    train(tmp_path / "esol.csv", source, uncertainty="mean-variance", target=target, epochs=1, device="cpu", **tiny)
    later = train(tmp_path / "esol.csv", target=target, init_from=str(source), epochs=1, device="cpu", member_trees=3)
    assert isinstance(later.trained.model, JoinedModel), "the trees of the new run do not follow the other"
    assert (tuple(later.trained.settings["members"]), later.trained.settings["dim"]) == (MEMBERS, 8)


def test_outputs_share_a_number_of_trees():
    counts = [MnagtEnsembleConfig().automatic(MOLECULES, outputs)["member_trees"] for outputs in (1, 12, 99)]
    assert counts == [300, 75, 40]


def test_only_molecules_have_such_members():
    with pytest.raises(Exception, match="reads molecules"):
        build_model("mnagt-ensemble", {}, load_dataset("MUTAG").features, 2)
    with pytest.raises(Exception, match="no member is called svm"):
        MnagtEnsembleConfig(members=("svm",))


def test_weights_are_those_of_a_simplex():
    weights = torch.stack(list(list_weights(3, steps=4)))
    assert len(weights) == 15
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(15))


def test_weights_are_equal_where_losses_say_nothing():
    candidates = torch.stack(list(list_weights(3)))
    for losses in (torch.zeros(66), torch.full((66,), torch.nan), torch.full((66,), torch.inf), torch.ones(66)):
        assert choose_weights(candidates, losses).tolist() == pytest.approx([1 / 3] * 3)
    losses = torch.arange(66.0)
    assert choose_weights(candidates, losses.index_fill(0, torch.tensor([0]), torch.nan)).isfinite().all()
    losses = (candidates[:, 0] > 0.45).float()
    assert choose_weights(candidates, losses).tolist() == pytest.approx([0.3, 0.3, 0.4]), "the nearest without a loss"
