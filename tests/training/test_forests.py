"""A forest that has been grown knows its training part, and goes where the model goes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeRegressor
from woods import forest_of

from mnagt import load_dataset, load_model, resume, train
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.explain.attribution import integrated_gradients
from mnagt.models.graph_model import GraphModel
from mnagt.tasks import MultiLabel, Regression, SubTokens, Task, word_keys
from mnagt.training import forests
from mnagt.training.config import RunConfig, TrainConfig
from mnagt.training.fit import Interrupted, outputs
from mnagt.training.forests import COMMON, Drawn
from mnagt.training.run import make_split, prepared

SETTINGS = {"dim": 8, "depth": 1, "head_dim": 4, "trees": 20, "leaves": 32}
CONFIG = RunConfig("MUTAG", "mnagt", SETTINGS, TrainConfig(epochs=1, batch_size=64), device="cpu")
SPLIT = make_split(CONFIG.split, load_dataset("MUTAG"))


def asked(task: Task, targets: torch.Tensor) -> PackedDataset:
    """The graphs of MUTAG, asked something else."""
    return replace(load_dataset("MUTAG"), task=task, targets=targets)


def grown(dataset: PackedDataset, seed: int = 0) -> tuple[GraphModel, PackedDataset]:
    model, dataset, task = prepared(CONFIG, dataset, SPLIT)
    forests.grow(model, dataset, SPLIT.train, task, seed)
    return model.eval(), dataset


def believed(model: GraphModel, dataset: PackedDataset) -> torch.Tensor:
    forest = forest_of(model)
    return forest.belief(forest.pieces(dataset.batch(torch.arange(len(dataset)))))


def test_trees_say_what_those_of_scikit_learn_say():
    model, dataset = grown(asked(Regression(("atoms",)), load_dataset("MUTAG").sizes[:, None].float()))
    forest, task = forest_of(model), forest_of(model).task
    assert task is not None
    pieces = forest.pieces(dataset.batch(torch.arange(len(dataset))))[:, : forest.columns].numpy().astype(np.float32)
    truth, known = task.truth(dataset.targets)[SPLIT.train, 0].numpy(), pieces[SPLIT.train]
    said = []
    for number in range(forest.trees):
        chance = np.random.default_rng((0, 0, number))
        graphs = Drawn.of(truth, np.isfinite(truth)).once(chance)
        tree = DecisionTreeRegressor(
            max_features="sqrt", max_leaf_nodes=32, max_depth=64, random_state=int(chance.integers(2**31))
        )
        said.append(tree.fit(known[graphs], truth[graphs]).predict(pieces))
    torch.testing.assert_close(believed(model, dataset)[:, 0], torch.tensor(np.mean(said, axis=0)).float())


def test_it_tells_classes_apart_and_is_the_same_for_the_same_seed():
    model, dataset = grown(load_dataset("MUTAG"))
    belief, target = believed(model, dataset), dataset.targets
    right = (belief.argmax(dim=1) == target).float()
    assert right[SPLIT.train].mean() > 0.9
    assert right[torch.cat([SPLIT.valid, SPLIT.test])].mean() > 0.75
    assert torch.equal(believed(grown(load_dataset("MUTAG"))[0], dataset), belief)
    assert not torch.equal(believed(grown(load_dataset("MUTAG"), seed=1)[0], dataset), belief)


def test_every_question_has_its_own_trees_and_its_own_gaps():
    yes = load_dataset("MUTAG").targets.float()
    unknown = torch.full_like(yes, torch.nan)
    some = torch.where(torch.arange(len(yes)) % 3 > 0, 1 - yes, torch.nan)
    model, dataset = grown(asked(MultiLabel(("yes", "no", "nobody knows")), torch.stack([yes, some, unknown], dim=1)))
    belief = believed(model, dataset)
    assert ((belief[:, 0] > 0.5) == (yes > 0.5)).float().mean() > 0.85
    assert ((belief[:, 1] < 0.5) == (yes > 0.5)).float().mean() > 0.85
    assert belief[:, 2].tolist() == [0.5] * len(yes)


def test_a_rare_answer_is_drawn_more_often_and_believed_no_more():
    truth = np.array([1.0] * 10 + [0.0] * 90 + [np.nan] * 5, dtype=np.float32)
    drawn = Drawn.of(truth, np.isfinite(truth))
    assert drawn.counts == [10, 10 * COMMON]
    assert drawn.odds == pytest.approx((1 / COMMON) / (10 / 90))
    graphs = drawn.once(np.random.default_rng(0))
    assert (truth[graphs] == 1).sum() == 10
    assert not set(graphs.tolist()) & set(range(100, 105))
    yes = torch.zeros(188, 1)
    yes[:15] = 1  # whatever the graphs look like
    model, dataset = grown(
        asked(MultiLabel(("q",)), yes[torch.randperm(188, generator=torch.Generator().manual_seed(0))])
    )
    assert believed(model, dataset).mean().item() == pytest.approx(15 / 188, abs=0.05)


def test_of_very_many_graphs_a_tree_sees_some(monkeypatch):
    monkeypatch.setattr(forests, "SAMPLE", 20)
    for truth, counts in (([1.0] * 50 + [0.0] * 150, [5, 15]), (list(range(2, 102)), [20])):
        drawn = Drawn.of(np.array(truth, dtype=np.float32), np.ones(len(truth), dtype=bool))
        assert drawn.counts == counts
        assert drawn.odds == 1


def test_a_run_keeps_its_forest(tmp_path):
    run = train(CONFIG, tmp_path / "run")
    dataset = load_dataset("MUTAG")
    said, test = run.trained.outputs(dataset), run.split.test
    torch.testing.assert_close(load_model(tmp_path / "run").outputs(dataset), said)
    assert run.result.test == run.trained.task.scores(said[test], dataset.targets[test])
    assert (
        run.result.valid == run.trained.task.scores(said[run.split.valid], dataset.targets[run.split.valid])["accuracy"]
    )
    forest_of(run.trained.model).task = None
    assert not torch.allclose(run.trained.outputs(dataset), said)


def test_interrupted_while_trees_grow_it_goes_on(tmp_path, monkeypatch):
    whole, grow = train(CONFIG, tmp_path / "whole"), forests.grow
    monkeypatch.setattr(forests, "grow", lambda *given, **_: grow(*given, should_stop=lambda: True))
    with pytest.raises(Interrupted):
        train(CONFIG, tmp_path / "cut")
    monkeypatch.undo()
    again = resume(tmp_path / "cut")
    assert replace(again.result, seconds=0) == replace(whole.result, seconds=0)
    dataset = load_dataset("MUTAG")
    assert torch.equal(again.trained.outputs(dataset), whole.trained.outputs(dataset))


def test_words_have_no_trees_and_are_told_so_at_once():
    words, keys = word_keys([["get"], ["set"]] * 94)
    with pytest.raises(InputError, match="sub-tokens; set trees to 0"):
        prepared(CONFIG, asked(SubTokens(words), keys), SPLIT)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(forests, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'mnagt\[sklearn\]', or set trees to 0"):
        prepared(CONFIG, load_dataset("MUTAG"), SPLIT)


def test_attributions_add_up_to_the_answer_of_both():
    model, dataset = grown(load_dataset("MUTAG"))
    few = torch.arange(3)
    answers = outputs(model, dataset, few)
    found = integrated_gradients(model, dataset, few, lambda row: lambda said: said[:, 1])
    for answer, attribution in zip(answers, found, strict=True):
        assert attribution.answer == pytest.approx(float(answer[1]), abs=1e-4)
        assert abs(attribution.gap) < 0.05
