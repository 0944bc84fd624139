"""A linear model and a network beside it: each graph is taught by weights that have not seen it."""

from dataclasses import replace

import pytest
import torch
from strategies import order_within, random_batch, renamed

from mnagt import RunConfig, TrainConfig, load_dataset, load_model, train
from mnagt.data.encodings import with_encodings
from mnagt.models.registry import build_model
from mnagt.nn.wide_and_deep import FOLDS, CrossFittedCounts, WideAndDeepHead
from mnagt.runs.config import SplitConfig
from mnagt.runs.split import make_split
from mnagt.training.fit_wide import DEEP_WEIGHTS, fit_wide, make_wide_problem

OUTPUTS, ITERATIONS, INITIAL = 3, 2, 1
FIXED = {"wl_iterations": 2, "wl_min_graphs": 1, "normalisation": "presence", "classifier": "logistic", "C": 0.3}
RUN = RunConfig(
    "MUTAG",
    "mnagt-wl",
    {**FIXED, "dim": 8, "depth": 1, "head_dim": 4},
    TrainConfig(epochs=2, batch_size=64),
    SplitConfig("random", seed=3),
    device="cpu",
)


def counts(seed: int = 0) -> CrossFittedCounts:
    """Fitted to random weights, other ones for every fold."""
    g = torch.Generator().manual_seed(seed)
    made, batch = CrossFittedCounts(OUTPUTS, ITERATIONS, INITIAL, "presence"), labelled()
    keys = made.node_colours(batch).long() + (torch.arange(INITIAL + ITERATIONS) << 31)
    made.key = keys.unique()
    made.weight, made.bias = torch.randn(len(made.key), OUTPUTS, generator=g), torch.randn(OUTPUTS, generator=g)
    made.fold_weight = torch.randn(len(made.key), FOLDS, OUTPUTS, generator=g)
    made.fold_bias = torch.randn(FOLDS, OUTPUTS, generator=g)
    return made


def labelled():
    return random_batch([5, 1, 7, 2, 9, 3], 0.4, seed=1, node_labels=True)


def outputs(made: CrossFittedCounts, batch) -> torch.Tensor:
    return made(*made.prepare(torch.zeros(batch.num_nodes, 0), batch))


def test_in_training_a_graph_has_the_weights_of_its_fold():
    made, batch = counts().train(), labelled()
    found, fold = outputs(made, batch), made.folds(batch)
    assert len(fold.unique()) > 1
    for number in range(FOLDS):
        made.weight, made.bias = made.fold_weight[:, number], made.fold_bias[number]
        expected = outputs(made.eval(), batch)
        torch.testing.assert_close(found[fold == number], expected[fold == number])


def test_the_same_graph_is_in_the_same_fold():
    made, batch = counts(), labelled()
    assert torch.equal(made.folds(renamed(batch, order_within(batch, 3))), made.folds(batch))


def test_the_weights_of_a_fold_were_fitted_without_it():
    dataset = load_dataset("MUTAG")
    split = make_split(RUN.split, dataset)
    task = dataset.task.fit(dataset.targets[split.train])
    problem = make_wide_problem(RUN, dataset, split, task)
    fitted = fit_wide(problem)
    made = CrossFittedCounts(task.num_outputs, 2, 1, "presence")
    folds = made.folds(with_encodings(dataset, made.encodings).batch(split.train))
    number = int(folds.bincount().argmax())
    flipped = dataset.targets.clone()
    flipped[split.train[folds == number]] = 1 - flipped[split.train[folds == number]]
    other = fit_wide(replace(problem, dataset=replace(problem.dataset, targets=flipped)))
    torch.testing.assert_close(other.fold_weight[:, number], fitted.fold_weight[:, number])
    assert not torch.allclose(other.tensors["weight"], fitted.tensors["weight"])


def test_with_no_weight_on_the_network_it_is_the_linear_model():
    deep = train(RUN)
    head = deep.trained.model.head
    assert isinstance(head, WideAndDeepHead)
    assert any(torch.isclose(head.deep_weight, torch.tensor(weight)) for weight in DEEP_WEIGHTS)
    head.deep_weight.zero_()
    linear = train(replace(RUN, model="wl-linear", settings=FIXED))
    dataset = load_dataset("MUTAG")
    test = torch.arange(20)
    batch = dataset.batch(test)
    torch.testing.assert_close(deep.trained.model(batch), linear.trained.model(batch), rtol=1e-4, atol=1e-4)


def test_on_the_validation_part_it_is_no_worse_than_the_linear_model():
    assert train(RUN).result.valid >= train(replace(RUN, model="wl-linear", settings=FIXED)).result.valid


def test_it_is_saved_loaded_and_resumed(tmp_path):
    run = train(RUN, tmp_path / "run")
    again = load_model(tmp_path / "run")
    dataset = load_dataset("MUTAG")
    batch = dataset.batch(torch.arange(30))
    torch.testing.assert_close(again.model(batch), run.trained.model.eval()(batch))
    assert again.settings["C"] == pytest.approx(0.3)


def test_validation_chooses_the_settings_of_the_linear_part():
    run = train(replace(RUN, settings={"dim": 8, "depth": 1, "head_dim": 4}, train=TrainConfig(epochs=1)))
    assert run.trained.settings["C"] is not None
    assert run.trained.settings["normalisation"] != "auto"


def test_the_network_alone_learns():
    model = build_model("mnagt-wl", {"dim": 8, "depth": 1}, load_dataset("MUTAG").features, 2)
    assert not [name for name, _ in model.named_parameters() if "wide" in name]
