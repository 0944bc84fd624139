"""A forest that has been grown knows its training part, and goes where the model goes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeRegressor

from mnagt import load_dataset, load_model, resume, train
from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.explain.attribution import integrated_gradients
from mnagt.inference.random_forest import RandomForest
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.split import make_split
from mnagt.tasks import MultiLabel, Regression, SubTokens, Task, word_keys
from mnagt.training import fit_model
from mnagt.training import fit_trees as module
from mnagt.training.fit_trees import MAX_RATIO, Sampler, fit_forest
from mnagt.training.trainer import Interrupted

SETTINGS = {"dim": 8, "depth": 1, "head_dim": 4, "forest_trees": 20, "forest_max_leaves": 32}
CONFIG = RunConfig("MUTAG", "mnagt", SETTINGS, TrainConfig(epochs=1, batch_size=64), device="cpu")
SPLIT = make_split(CONFIG.split, load_dataset("MUTAG"))


def with_task(task: Task, targets: torch.Tensor) -> PackedDataset:
    """The graphs of MUTAG with other targets."""
    return replace(load_dataset("MUTAG"), task=task, targets=targets)


def grow(dataset: PackedDataset, seed: int = 0) -> tuple[RandomForest, PackedDataset, Task]:
    task = dataset.task.fit(dataset.targets[SPLIT.train])
    forest = RandomForest(task.num_outputs, trees=20, max_leaves=32)
    dataset = with_encodings(dataset, forest.encodings)
    fit_forest(forest, dataset, SPLIT.train, task, seed)
    return forest, dataset, task


def predict(forest: RandomForest, dataset: PackedDataset) -> torch.Tensor:
    return forest(dataset.batch(torch.arange(len(dataset))))


def test_trees_predict_what_those_of_scikit_learn_predict():
    forest, dataset, task = grow(with_task(Regression(("atoms",)), load_dataset("MUTAG").sizes[:, None].float()))
    features = forest.presence_features(dataset.batch(torch.arange(len(dataset))))[:, : forest.columns].numpy()
    features = features.astype(np.float32)
    target, known = task.target_probability(dataset.targets)[SPLIT.train, 0].numpy(), features[SPLIT.train]
    predictions = []
    for number in range(forest.trees):
        generator = np.random.default_rng((0, 0, number))
        graphs = Sampler.from_targets(target).sample(generator)
        tree = DecisionTreeRegressor(
            max_features="sqrt", max_leaf_nodes=32, max_depth=64, random_state=int(generator.integers(2**31))
        )
        predictions.append(tree.fit(known[graphs], target[graphs]).predict(features))
    torch.testing.assert_close(predict(forest, dataset)[:, 0], torch.tensor(np.mean(predictions, axis=0)).float())


def test_it_tells_classes_apart_and_is_the_same_for_the_same_seed():
    forest, dataset, _ = grow(load_dataset("MUTAG"))
    probability = predict(forest, dataset)
    is_right = (probability.argmax(dim=1) == dataset.targets).float()
    assert is_right[SPLIT.train].mean() > 0.9
    assert is_right[torch.cat([SPLIT.valid, SPLIT.test])].mean() > 0.75
    assert torch.equal(predict(grow(load_dataset("MUTAG"))[0], dataset), probability)
    assert not torch.equal(predict(grow(load_dataset("MUTAG"), seed=1)[0], dataset), probability)


def test_every_label_has_its_own_trees_and_its_own_missing_targets():
    yes = load_dataset("MUTAG").targets.float()
    unknown = torch.full_like(yes, torch.nan)
    some = torch.where(torch.arange(len(yes)) % 3 > 0, 1 - yes, torch.nan)
    targets = torch.stack([yes, some, unknown], dim=1)
    forest, dataset, _ = grow(with_task(MultiLabel(("yes", "no", "nobody knows")), targets))
    probability = predict(forest, dataset)
    assert ((probability[:, 0] > 0.5) == (yes > 0.5)).float().mean() > 0.85
    assert ((probability[:, 1] < 0.5) == (yes > 0.5)).float().mean() > 0.85
    assert probability[:, 2].tolist() == [0.5] * len(yes)


def test_a_rare_class_is_drawn_more_often_and_predicted_no_more():
    target = np.array([1.0] * 10 + [0.0] * 90 + [np.nan] * 5, dtype=np.float32)
    sampler = Sampler.from_targets(target)
    assert sampler.counts == [10, 10 * MAX_RATIO]
    assert sampler.odds == pytest.approx((1 / MAX_RATIO) / (10 / 90))
    graphs = sampler.sample(np.random.default_rng(0))
    assert (target[graphs] == 1).sum() == 10
    assert not set(graphs.tolist()) & set(range(100, 105))
    yes = torch.zeros(188, 1)
    yes[:15] = 1  # whatever the graphs look like
    order = torch.randperm(188, generator=torch.Generator().manual_seed(0))
    forest, dataset, _ = grow(with_task(MultiLabel(("q",)), yes[order]))
    assert predict(forest, dataset).mean().item() == pytest.approx(15 / 188, abs=0.05)


def test_of_very_many_graphs_a_tree_sees_some(monkeypatch):
    monkeypatch.setattr(module, "MAX_SAMPLE", 20)
    for target, counts in (([1.0] * 50 + [0.0] * 150, [5, 15]), (list(range(2, 102)), [20])):
        sampler = Sampler.from_targets(np.array(target, dtype=np.float32))
        assert sampler.counts == counts
        assert sampler.odds == 1


def test_a_forest_is_fitted_to_the_training_part_alone():
    dataset = load_dataset("MUTAG")
    forest, encoded, _ = grow(dataset)
    elsewhere = torch.ones(len(dataset), dtype=torch.bool).index_fill(0, SPLIT.train, False)
    other, _, _ = grow(replace(dataset, targets=torch.where(elsewhere, 1 - dataset.targets, dataset.targets)))
    assert torch.equal(predict(other, encoded), predict(forest, encoded))
    fewer = RandomForest(2, trees=1, max_leaves=2)
    fewer.fit_vocabulary(*encoded.select_encoding("fragment-colours", SPLIT.train))
    assert torch.equal(fewer.column, forest.column)
    fewer.fit_vocabulary(*encoded.select_encoding("fragment-colours", torch.arange(len(dataset))))
    assert not torch.equal(fewer.column, forest.column)


def test_a_run_keeps_its_forest(tmp_path):
    run = train(CONFIG, tmp_path / "run")
    dataset = load_dataset("MUTAG")
    output, test, valid = run.trained.outputs(dataset), run.split.test, run.split.valid
    torch.testing.assert_close(load_model(tmp_path / "run").outputs(dataset), output)
    assert run.result.test == pytest.approx(run.trained.task.scores(output[test], dataset.targets[test]))
    assert run.result.valid == run.trained.task.scores(output[valid], dataset.targets[valid])["accuracy"]
    assert not torch.allclose(replace(run.trained, forest=None).outputs(dataset), output)


def test_a_run_grows_its_forest_on_its_training_part_alone():
    dataset = load_dataset("MUTAG")
    run = train(CONFIG, dataset=dataset)
    elsewhere = torch.ones(len(dataset), dtype=torch.bool).index_fill(0, run.split.train, False)
    other = train(
        CONFIG, dataset=replace(dataset, targets=torch.where(elsewhere, 1 - dataset.targets, dataset.targets))
    )
    assert run.trained.forest is not None
    assert other.trained.forest is not None
    torch.testing.assert_close(other.trained.forest.state_dict(), run.trained.forest.state_dict(), rtol=0, atol=0)


def test_interrupted_while_trees_grow_it_goes_on(tmp_path, monkeypatch):
    whole = train(CONFIG, tmp_path / "whole")
    monkeypatch.setattr(fit_model, "fit_forest", lambda *given: fit_forest(*given[:-1], should_stop=lambda: True))
    with pytest.raises(Interrupted):
        train(CONFIG, tmp_path / "cut")
    monkeypatch.undo()
    again = resume(tmp_path / "cut")
    assert replace(again.result, seconds=0) == replace(whole.result, seconds=0)
    dataset = load_dataset("MUTAG")
    assert torch.equal(again.trained.outputs(dataset), whole.trained.outputs(dataset))


def test_sub_tokens_have_no_trees_which_is_said_at_once():
    words, keys = word_keys([["get"], ["set"]] * 94)
    with pytest.raises(InputError, match=r"sub-tokens; set forest_trees to 0"):
        fit_model.fit_model(CONFIG, with_task(SubTokens(words), keys), SPLIT)


def test_attributions_add_up_to_the_output_of_the_ensemble():
    trained, dataset, few = train(CONFIG).trained, load_dataset("MUTAG"), torch.arange(3)
    outputs = trained.outputs(dataset, few)
    found = integrated_gradients(trained.predictor(), dataset, few, [lambda output: output[:, 1]] * len(few))
    for output, attribution in zip(outputs, found, strict=True):
        assert attribution.output == pytest.approx(float(output[1]), abs=1e-4)
        assert abs(attribution.gap) < 0.05
