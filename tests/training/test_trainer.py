"""Training learns, remembers the best epoch, and goes on after an interruption as if there had been none."""

import json
from dataclasses import replace

import pytest
import torch

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import random_split
from mnagt.errors import InputError
from mnagt.inference.outputs import compute_outputs
from mnagt.inference.weights import load_tensors, save_tensors
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.runs.config import TrainConfig
from mnagt.tasks import MultiLabel, Regression, SubTokens
from mnagt.training import trainer as fit
from mnagt.training.progress import Reporter
from mnagt.training.trainer import Interrupted, Trainer

SMALL = {"dim": 16, "depth": 2, "head_dim": 8}
CONFIG = TrainConfig(epochs=4, batch_size=32, seed=3, checkpoint_seconds=0)


@pytest.fixture(scope="module")
def mutag() -> PackedDataset:
    return load_dataset("MUTAG")


def trainer(dataset: PackedDataset, config: TrainConfig = CONFIG, **kwargs) -> Trainer:
    torch.manual_seed(config.seed)
    settings = {**SMALL, "dropout": 0.3, "attention_dropout": 0.1}
    model = build_model("mnagt", settings, dataset.features, dataset.task.num_outputs)
    return Trainer(model, dataset, random_split(len(dataset), 0), dataset.task, config, **kwargs)


@pytest.mark.parametrize(
    "name", [name for name, entry in MODELS.items() if not entry.is_fitted_by_sklearn and entry.reads is None]
)
def test_every_model_memorises_ten_graphs(name, mutag):
    torch.manual_seed(0)
    settings = {"dim": 32, "depth": 2, "dropout": 0.0}
    settings = {each: value for each, value in settings.items() if each in full_settings(name, {})}
    model = build_model(name, settings, mutag.features, 2)
    ten = torch.cat([torch.arange(5), torch.arange(183, 188)])
    batch = with_encodings(mutag, model.encodings).batch(ten)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = [1.0]
    while losses[-1] >= 0.05 and len(losses) < 150:
        optimizer.zero_grad()
        loss = mutag.task.loss(model(batch), batch.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05


@pytest.mark.parametrize("window", [1, 3, 99])
def test_the_epoch_kept_is_the_end_of_the_best_stretch(window, mutag):
    run = trainer(mutag, replace(CONFIG, epochs=8, selection_window=window))
    at = run.run()
    valid = [record["valid_accuracy"] for record in at.history]
    window = min(window, 8)
    means = [sum(valid[end - window : end]) / window for end in range(window, 9)]
    assert at.best_score == pytest.approx(max(means))
    assert means[at.best_epoch - window] == pytest.approx(max(means))
    kept = run.task.scores(compute_outputs(run.model, run.dataset, run.split.valid), mutag.targets[run.split.valid])
    assert kept["accuracy"] == valid[at.best_epoch - 1]


def test_training_ends_when_patience_does_and_stays_ended(mutag, tmp_path):
    config = replace(CONFIG, epochs=60, selection_window=1, patience=2)
    at = trainer(mutag, config, checkpoint=tmp_path / "last.safetensors").run()
    assert at.epoch == at.best_epoch + 2 < 60
    valid = [record["valid_accuracy"] for record in at.history]
    assert max(valid) == valid[at.best_epoch - 1]
    again = trainer(mutag, config, checkpoint=tmp_path / "last.safetensors").run()
    assert again.history == at.history


def test_averaged_weights_are_validated_kept_and_resumed(mutag, tmp_path):
    config = replace(CONFIG, ema_decay=0.9)
    whole = trainer(mutag, config)
    whole.run()
    plain = trainer(mutag)
    plain.run()
    other = plain.model.state_dict()
    assert not all(torch.equal(tensor, other[name]) for name, tensor in whole.model.state_dict().items())
    stop = StopAfter(7)
    with pytest.raises(Interrupted):
        trainer(mutag, config, checkpoint=tmp_path / "last", reporter=stop, should_stop=stop).run()
    resumed = trainer(mutag, config, checkpoint=tmp_path / "last")
    resumed.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


class StopAfter(Reporter):
    """Asks to stop once so many steps were taken."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, step: int, graphs: int) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0


@pytest.fixture(scope="module")
def whole(mutag) -> Trainer:
    """A training that nothing interrupted."""
    run = trainer(mutag)
    run.run()
    return run


@pytest.mark.parametrize("steps", [1, 5, 7, 10, 19])
def test_interrupted_at_any_step_and_resumed_it_ends_bit_for_bit_the_same(steps, whole, mutag, tmp_path):
    stop = StopAfter(steps)
    with pytest.raises(Interrupted):
        trainer(mutag, checkpoint=tmp_path / "last.safetensors", reporter=stop, should_stop=stop).run()
    resumed = trainer(mutag, checkpoint=tmp_path / "last.safetensors")
    resumed.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    assert resumed.at.history == whole.at.history


def test_a_finished_run_is_not_trained_again(mutag, tmp_path):
    trainer(mutag, checkpoint=tmp_path / "last").run()
    again = trainer(mutag, checkpoint=tmp_path / "last", reporter=(watch := StopAfter(99)))
    again.run()
    assert watch.left == 99


def test_training_leaves_the_callers_randomness_alone(mutag):
    torch.manual_seed(5)
    expected = torch.rand(3)
    run = trainer(mutag, replace(CONFIG, epochs=1))
    torch.manual_seed(5)
    run.run()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("some", [[3, 5, 1, 3], []])
def test_names_are_scored_by_choices_kept_batch_by_batch(some, mutag):
    task = SubTokens(("get", "set", "user"), positions=2)
    model = build_model("gin", {"dim": 8}, mutag.features, task.num_outputs)
    graphs, some = replace(mutag, task=task), torch.tensor(some, dtype=torch.long)
    kept = compute_outputs(model, graphs, some, batch_size=2, reduce=task.reduce_output)
    assert kept.shape == (len(some), 2)
    assert torch.equal(kept, task.reduce_output(compute_outputs(model, graphs, some, batch_size=2)))


@pytest.mark.parametrize(
    ("batch_size", "nodes", "at_once"), [(2, 8192, 256), (2, 100, 5), (2, 10, 2), (64, 100, 64), (512, 8192, 512)]
)
def test_small_batches_are_for_training_alone(batch_size, nodes, at_once, mutag, monkeypatch):
    monkeypatch.setattr(fit, "EVALUATION_NODES", nodes)  # a molecule of MUTAG has 17.9 on average
    run = trainer(mutag, replace(CONFIG, batch_size=batch_size))
    assert run.evaluation_batch_size == at_once
    run.model.eval()
    torch.testing.assert_close(run._validate(), compute_outputs(run.model, mutag, run.split.valid, 3))


def test_outputs_come_in_the_order_asked_for(mutag):
    model = trainer(mutag).model
    some = torch.tensor([100, 3, 57, 3, 4])
    together = compute_outputs(model, mutag, some, batch_size=2)
    each = torch.cat([compute_outputs(model, mutag, some[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, each)


def test_a_checkpoint_of_another_model_is_refused(mutag, tmp_path):
    trainer(mutag, replace(CONFIG, epochs=1), checkpoint=tmp_path / "last").run()
    other = Trainer(
        build_model("gin", {}, mutag.features, 2),
        mutag,
        random_split(len(mutag), 0),
        mutag.task,
        CONFIG,
        checkpoint=tmp_path / "last",
    )
    with pytest.raises(InputError, match="of another model"):
        other.run()


def test_a_damaged_checkpoint_is_refused(mutag, tmp_path):
    path = tmp_path / "last"
    trainer(mutag, replace(CONFIG, epochs=1), checkpoint=path).run()
    path.write_bytes(path.read_bytes()[:-999])
    with pytest.raises(InputError, match="damaged or not a checkpoint"):
        trainer(mutag, checkpoint=path).run()


def test_a_checkpoint_that_says_other_things_is_refused(mutag, tmp_path):
    path = tmp_path / "last"
    trainer(mutag, replace(CONFIG, epochs=1), checkpoint=path).run()
    tensors, note = load_tensors(path)
    save_tensors(path, tensors, {**note, "phase": "waning"})
    with pytest.raises(InputError, match="not a checkpoint of this run"):
        trainer(mutag, checkpoint=path).run()


def test_a_validation_part_without_a_score_stops_the_run(mutag):
    alike = replace(mutag, task=MultiLabel(("y",)), targets=torch.ones(188, 1))
    with pytest.raises(InputError, match="the validation part has no ap"):
        trainer(alike).run()


@pytest.mark.parametrize("wrong", [{"precision": "bfloat16"}, {"schedule": "cosin"}])
def test_words_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InputError, match="must be one of"):
        replace(CONFIG, **wrong)


def test_missing_answers_teach_nothing(mutag):
    targets = torch.stack([mutag.targets.float(), torch.full((188,), torch.nan)], dim=1)
    two = replace(mutag, task=MultiLabel(("known", "unknown")), targets=targets)
    run = trainer(two, replace(CONFIG, epochs=2))
    before = run.model.head[-1].weight[1].clone()  # type: ignore[index]
    run = Trainer(run.model, two, run.split, two.task, replace(CONFIG, epochs=2, weight_decay=0.0))
    at = run.run()
    assert torch.equal(run.model.head[-1].weight[1], before)  # type: ignore[index]
    assert 0 <= at.history[-1]["valid_ap"] <= 1


def test_a_regression_is_scored_in_its_own_units(mutag):
    size = mutag.sizes.float()[:, None] * 1000
    split = random_split(188, 0)
    task = Regression(("weight",)).fit(size[split.train])
    sized = replace(mutag, task=task, targets=size)
    run = Trainer(
        build_model("gin", {"dim": 16, "depth": 2}, sized.features, 1), sized, split, task,
        TrainConfig(epochs=40, batch_size=32, lr=5e-3),
    )  # fmt: skip
    at = run.run()
    assert at.best_score is not None
    assert at.best_score < 2300  # half the deviation
    assert json.dumps(at.history[-1])
