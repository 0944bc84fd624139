"""A linear model and a network, each fitted by itself, in a sum whose weights validation chooses."""

import time
from dataclasses import replace

import pytest
import torch

from mnagt import RunConfig, TrainConfig, load_dataset, load_model, train
from mnagt.experiments.trials import run_trial
from mnagt.models.registry import build_model
from mnagt.nn.joined_model import JoinedModel
from mnagt.runs.config import SplitConfig
from mnagt.runs.split import make_split
from mnagt.training import fit_model
from mnagt.training.fit_members import deviation

FIXED = {"wl_iterations": 2, "wl_min_graphs": 1, "normalisation": "presence", "classifier": "logistic", "C": 0.3}
NETWORK = {"dim": 8, "depth": 1, "head_dim": 4}
RUN = RunConfig(
    "MUTAG",
    "mnagt-wl",
    {**FIXED, **NETWORK},
    TrainConfig(epochs=2, batch_size=64),
    SplitConfig("random", seed=3),
    device="cpu",
)


def outputs_of_members(model: JoinedModel) -> dict[str, torch.Tensor]:
    batch = load_dataset("MUTAG").batch(torch.arange(20))
    return model.outputs_of_members(lambda: model.eval()(batch).detach())


def test_the_parts_are_wl_linear_and_the_network_of_mnagt():
    both = train(RUN).trained.model
    assert isinstance(both, JoinedModel)
    found = outputs_of_members(both)
    batch = load_dataset("MUTAG").batch(torch.arange(20))
    linear = train(replace(RUN, model="wl-linear", settings=FIXED))
    torch.testing.assert_close(found["wide"], linear.trained.model(batch), rtol=1e-4, atol=1e-4)
    network = train(replace(RUN, model="mnagt", settings={**NETWORK, "wl_iterations": 0}))
    torch.testing.assert_close(found["network"], network.trained.model.eval()(batch))
    weights = both.network.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in network.trained.model.state_dict().items())


def test_outputs_of_members_leave_the_weights_as_they_were():
    model = train(RUN).trained.model
    assert isinstance(model, JoinedModel)
    before = model.weights.clone()
    outputs_of_members(model)
    assert torch.equal(model.weights, before)


def test_on_the_validation_part_the_loss_is_no_greater_than_that_of_either_part():
    run, dataset = train(RUN), load_dataset("MUTAG")
    model, valid, target = run.trained.model, run.split.valid, dataset.targets[run.split.valid]
    assert isinstance(model, JoinedModel)
    loss = run.trained.task.loss(run.trained.outputs(dataset, valid), target)
    for part in model.outputs_of_members(lambda: run.trained.outputs(dataset, valid)).values():
        assert loss <= run.trained.task.loss(part / deviation(part), target) + 1e-6


def test_a_network_that_knows_nothing_gets_no_weight():
    """With a learning rate of zero it stays as it was drawn; the linear part is then as wl-linear is."""
    model = train(replace(RUN, train=replace(RUN.train, lr=0.0))).trained.model
    assert isinstance(model, JoinedModel)
    parts, (network, wide) = outputs_of_members(model), model.weights.tolist()
    assert network * deviation(parts["network"]) < 0.5 * wide * deviation(parts["wide"])


def test_a_trial_records_the_test_scores_of_each_part():
    trial = run_trial(RUN)
    dataset = load_dataset("MUTAG")
    assert trial.notes["members"].keys() == {"wide", "network"}
    linear = train(replace(RUN, model="wl-linear", settings=FIXED))
    assert trial.notes["members"]["wide"]["accuracy"] == pytest.approx(linear.result.test["accuracy"])
    assert len(make_split(RUN.split, dataset).test) == len(linear.split.test)


def test_the_seconds_of_training_count_the_linear_part_and_the_weights(monkeypatch):
    def sleep_first(function):
        def slow(*arguments):
            time.sleep(0.6)
            return function(*arguments)

        return slow

    for name in ("fit_members", "join_members"):
        monkeypatch.setattr(fit_model, name, sleep_first(getattr(fit_model, name)))
    assert train(RUN).result.seconds > 1.2


def test_it_is_saved_loaded_and_resumed(tmp_path):
    run = train(RUN, tmp_path / "run")
    again = load_model(tmp_path / "run")
    dataset = load_dataset("MUTAG")
    batch = dataset.batch(torch.arange(30))
    torch.testing.assert_close(again.model(batch), run.trained.model.eval()(batch))
    assert again.settings["C"] == pytest.approx(0.3)


def test_validation_chooses_the_settings_of_the_linear_part():
    run = train(replace(RUN, settings=NETWORK, train=TrainConfig(epochs=1)))
    assert run.trained.settings["C"] is not None
    assert run.trained.settings["normalisation"] != "auto"


def test_only_the_network_is_trained_by_gradients():
    model = build_model("mnagt-wl", {"dim": 8, "depth": 1}, load_dataset("MUTAG").features, 2)
    assert isinstance(model, JoinedModel)
    inside = {id(p) for p in model.network.parameters()}
    assert {name for name, p in model.named_parameters() if id(p) not in inside} == {
        "readout.members.wide.weight",
        "readout.members.wide.bias",
    }
