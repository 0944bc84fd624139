"""Models that scikit-learn fits go through runs, folders and estimators like any other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mnagt import load_dataset, load_model, resume, train
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.splits import Split, random_split
from mnagt.errors import InputError
from mnagt.estimators import GraphClassifier
from mnagt.explain import explain
from mnagt.graphs.molecules import rdkit_descriptors
from mnagt.nn.molecule_descriptors import MorganBits
from mnagt.nn.wl_counts import WLCounts
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.tasks import MultiLabel, Regression, SingleLabel, SubTokens, Task, word_key
from mnagt.training.fit_model import fit_model
from mnagt.training.trainer import Interrupted

CONFIG = RunConfig("MUTAG", "wl-linear", device="cpu")
FOREST = RunConfig("molecules", "morgan-forest", {"num_trees": 25}, device="cpu")
ALCOHOLS = [f"{'C' * n}{('', '(N)', '(NN)')[n % 3]}O" for n in range(1, 16)]
ACIDS = [f"{'C' * n}C{'(Cl)' * (n % 2)}C(=O)O" for n in range(15)]


@pytest.fixture(scope="module")
def mutag() -> PackedDataset:
    return load_dataset("MUTAG")


@pytest.fixture(scope="module")
def molecules() -> PackedDataset:
    graphs = read_smiles(ALCOHOLS + ACIDS).graphs
    return replace(graphs, task=SingleLabel(("alcohol", "acid")), targets=torch.arange(30) // 15)


def with_task(dataset: PackedDataset, task: Task, targets: Tensor) -> PackedDataset:
    return replace(dataset, task=task, targets=targets)


def test_a_run_ends_with_a_model_and_one_record(tmp_path: Path, mutag):
    run = train(CONFIG, tmp_path / "run", dataset=mutag)
    assert len(run.history) == run.result.epoch == 1
    assert run.history[0]["valid_accuracy"] == run.result.valid >= 0.8
    assert run.result.test["accuracy"] > 0.7
    chosen = run.trained.settings
    assert None not in chosen.values()
    assert "auto" not in chosen.values()
    loaded = load_model(tmp_path / "run")
    assert loaded.settings == chosen
    torch.testing.assert_close(loaded.outputs(mutag), run.trained.outputs(mutag), rtol=0, atol=0)
    again = resume(tmp_path / "run")
    assert again.result == run.result
    assert again.trained.settings == chosen


def test_a_run_that_was_stopped_is_fitted_from_the_start(tmp_path: Path, mutag):
    run, split = tmp_path / "run", random_split(len(mutag), 0)
    with pytest.raises(Interrupted):
        fit_model(CONFIG, mutag, split, should_stop=lambda: True)
    train(CONFIG, run, dataset=mutag)
    before = load_model(run).model.state_dict()
    (run / "result.json").unlink()
    (run / "model.safetensors").unlink()
    resume(run, dataset=mutag)
    torch.testing.assert_close(load_model(run).model.state_dict(), before, rtol=0, atol=0)


def test_a_damaged_model_is_refused(tmp_path: Path, mutag):
    trained = train(CONFIG, dataset=mutag).trained
    counts = trained.model.readout
    assert isinstance(counts, WLCounts)
    counts.key = counts.key[1:]
    trained.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"its tables have \d+, \d+ rows; restore it or train again"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("classifier", ["logistic", "svm"])
def test_what_is_given_is_not_chosen(classifier, mutag):
    given = {"wl_iterations": 2, "normalisation": "log", "classifier": classifier, "C": 0.7}
    trained = train(replace(CONFIG, settings=given), dataset=mutag).trained
    assert trained.settings == given | {"wl_min_graphs": 1}


def test_three_classes_of_atoms_counted(mutag):
    """The number of oxygens, cut into three classes, is linear in counts."""
    oxygens = [int((mutag.batch(torch.tensor([g])).node_labels == 2).sum()) for g in range(len(mutag))]
    classes = torch.tensor(oxygens).div(2, rounding_mode="floor").clamp(max=2)
    run = train(CONFIG, dataset=with_task(mutag, SingleLabel(("few", "some", "many")), classes))
    assert run.result.test["accuracy"] > 0.85


def test_numbers_come_from_ridge_regression(mutag):
    targets = torch.stack([mutag.sizes.float(), -3.0 * mutag.sizes], dim=1)
    targets[:30, 1] = torch.nan
    run = train(CONFIG, dataset=with_task(mutag, Regression(("size", "loss")), targets))
    assert run.result.test["rmse"] < 2
    predicted = run.trained.predict(mutag, torch.tensor([5]))
    assert predicted["size"][0] == pytest.approx(float(mutag.sizes[5]), abs=1)


def test_labels_may_be_missing_or_all_alike(mutag):
    labels = torch.stack([mutag.targets.float(), torch.ones(188), torch.full((188,), torch.nan)], dim=1)
    labels[::3, 0] = torch.nan
    run = train(CONFIG, dataset=with_task(mutag, MultiLabel(("mutagenic", "always", "unknown"), "rocauc"), labels))
    assert run.result.test["rocauc"] > 0.75
    predicted = run.trained.predict(mutag)
    assert min(predicted["p(always)"]) > 0.95
    assert set(predicted["p(unknown)"]) == {0.5}


def test_class_weights_count(mutag):
    outputs = [
        train(replace(CONFIG, train=TrainConfig(class_weights=weighted)), dataset=mutag).trained.outputs(mutag)
        for weighted in (False, True)
    ]
    rare = int(mutag.targets.bincount().argmin())
    shares = [output.softmax(dim=1)[:, rare].mean() for output in outputs]
    assert shares[1] > shares[0]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(CONFIG, train=TrainConfig(label_smoothing=0.1)), "without label_smoothing; leave it out"),
        (replace(CONFIG, model="morgan-forest"), "morgan-forest reads molecules, with the nine columns"),
    ],
)
def test_what_cannot_be_fitted_is_refused(config, said, mutag, tmp_path):
    with pytest.raises(InputError, match=said):
        train(config, tmp_path / "run", dataset=mutag)
    assert not (tmp_path / "run").exists()


def test_words_are_refused(mutag):
    words = with_task(mutag, SubTokens(("get", "set")), torch.tensor([[word_key("get")], [word_key("set")]] * 94))
    with pytest.raises(InputError, match="wl-linear predicts classes, labels or numbers, and the task is sub-tokens"):
        train(CONFIG, dataset=words)


def test_an_estimator_without_a_validation_part_takes_usual_settings(mutag):
    import networkx as nx

    graphs = [nx.cycle_graph(n) if n % 2 else nx.star_graph(n) for n in range(3, 33)]
    kinds = np.array(["cycle" if n % 2 else "star" for n in range(3, 33)])
    model = GraphClassifier("wl-linear", random_state=0).fit(graphs, kinds)
    assert (model.predict(graphs) == kinds).mean() > 0.9
    assert model.trained_.settings["C"] == 30.0
    assert model.trained_.settings["classifier"] == "logistic"


def test_a_forest_tells_molecules_apart(molecules, tmp_path):
    run = train(FOREST, tmp_path / "run", dataset=molecules)
    assert run.result.test["accuracy"] == 1
    told = load_model(tmp_path / "run").predict(read_smiles(["CCCCCCO", "CCCCCC(=O)O"]).graphs)
    assert told["prediction"] == ["alcohol", "acid"]
    assert sum(told[f"p({name})"][0] for name in ("alcohol", "acid")) == pytest.approx(1, abs=1e-5)


def test_a_forest_is_that_of_scikit_learn(molecules):
    from sklearn.ensemble import RandomForestRegressor

    split = random_split(len(molecules), 0)
    labels = torch.stack([molecules.targets.float(), torch.full((30,), torch.nan)], dim=1)
    fitted = fit_model(FOREST, with_task(molecules, MultiLabel(("acid", "unknown")), labels), split)
    readout = fitted.model.readout
    assert isinstance(readout, MorganBits)
    bits = readout(torch.zeros(0, 0), molecules.batch(torch.arange(30)))[:, :2048].numpy()
    theirs: Any = RandomForestRegressor(25, min_samples_leaf=2, random_state=0).set_params(max_features="sqrt")
    theirs.fit(bits[split.train], labels[split.train, 0])
    ours = fitted.to_trained({}).outputs(molecules).sigmoid()
    np.testing.assert_allclose(ours[:, 0].numpy(), theirs.predict(bits), atol=1e-5)
    assert ours[:, 1].tolist() == [0.5] * 30


def test_a_forest_learns_numbers(molecules):
    sizes = molecules.sizes.float()[:, None]
    run = train(FOREST, dataset=with_task(molecules, Regression(("atoms",)), sizes))
    assert run.result.test["rmse"] < 5


def test_attributions_of_a_linear_model_are_exact(mutag):
    trained = train(CONFIG, dataset=mutag).trained
    (explained,) = explain(trained, mutag, torch.tensor([7]))
    assert abs(explained.attribution.gap) < 1e-4
    assert explained.attribution.nodes.abs().sum() > 0.1


def test_a_forest_has_no_gradients_to_explain_it_by(molecules):
    trained = train(FOREST, dataset=molecules).trained
    with pytest.raises(InputError, match="no vectors of nodes, so there are no gradients"):
        explain(trained, molecules, torch.tensor([7]))


def test_boosted_trees_as_tensors_are_scikit_learns():
    """Of labels, classes and numbers, with missing targets."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    smiles = [f"{'C' * (1 + i % 7)}{('O', 'N', 'c1ccccc1', 'Cl')[i % 4]}" for i in range(48)]
    graphs = read_smiles(smiles).graphs
    label = torch.tensor([float(i % 4 == 2) for i in range(48)])
    split = Split(torch.arange(32), torch.arange(32, 40), torch.arange(40, 48))
    settings = {"num_iterations": 5, "min_samples_leaf": 2}
    cases = {
        MultiLabel(("q",)): (label[:, None], HistGradientBoostingClassifier),
        SingleLabel(("a", "b")): (label.long(), HistGradientBoostingClassifier),
        Regression(("n",)): (
            torch.tensor([len(each) for each in smiles])[:, None].float(),
            HistGradientBoostingRegressor,
        ),
    }
    for task, (target, kind) in cases.items():
        dataset = replace(graphs, task=task, targets=target)
        config = RunConfig("molecules", "descriptor-boosting", settings, device="cpu")
        fitted = fit_model(config, dataset, split)
        x = rdkit_descriptors(dataset.batch(torch.arange(48)), 217)[graphs.node_ptr[:-1].long()].double().numpy()
        x = np.where(np.isnan(x[:32]).all(axis=0), 0.0, x)
        options = {
            "max_iter": 5,
            "learning_rate": 0.05,
            "min_samples_leaf": 2,
            "early_stopping": False,
            "random_state": 0,
        }
        y = fitted.trainer.task.target_probability(target)[:32, -1].numpy()
        theirs = kind(**options).fit(x[:32], y if task.kind == "regression" else y.astype(int))
        ours = fitted.trainer.task.to_probability(fitted.model(dataset.batch(torch.arange(48))))[:, -1].detach()
        expected = theirs.predict(x) if task.kind == "regression" else theirs.predict_proba(x)[:, 1]
        torch.testing.assert_close(ours, torch.from_numpy(expected).float(), atol=1e-5, rtol=1e-4)
