"""How sure a model may be: probabilities that can be believed, sets that hold the truth as often as they say."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from mnagt.cli import main
from mnagt.data.registry import load_dataset
from mnagt.errors import InputError
from mnagt.inference.calibration import Calibration, fit_calibration, fit_temperature
from mnagt.inference.ensemble import Ensemble, average_outputs, load_models
from mnagt.inference.model_folder import CALIBRATION, load_model
from mnagt.inference.predict import calibrate, predict
from mnagt.metrics import expected_calibration_error
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.tasks import MultiLabel, Regression, SingleLabel, SubTokens, word_keys
from mnagt.training.run import train

CLASSES = SingleLabel(("a", "b", "c"))


def drawn(probability: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(probability, 1, generator=torch.Generator().manual_seed(5)).flatten()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs on one split, and one on another."""
    out = tmp_path_factory.mktemp("runs")
    for name, seed, split in (("a", 0, 0), ("b", 1, 0), ("c", 2, 1)):
        config = RunConfig(
            "MUTAG",
            "gin",
            settings={"dim": 16, "depth": 2},
            train=TrainConfig(epochs=4, batch_size=32, seed=seed),
            split=SplitConfig("random", seed=split),
            device="cpu",
        )
        train(config, out / name)
    return [out / "a", out / "b", out / "c"]


@pytest.mark.parametrize("hot", [0.4, 1.0, 2.5])
def test_the_temperature_is_found_at_which_answers_were_drawn(hot):
    output = 3 * torch.randn(6000, 3, generator=torch.Generator().manual_seed(1))
    assert fit_temperature(CLASSES, output, drawn((output / hot).softmax(dim=1))) == pytest.approx(hot, rel=0.08)


@pytest.mark.parametrize("changed", [{"weights": (1.0, 5.0, 20.0)}, {"smoothing": 0.2}])
def test_the_temperature_does_not_depend_on_class_weights_or_label_smoothing(changed):
    output = 3 * torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    target = drawn(output.softmax(dim=1))
    assert fit_temperature(replace(CLASSES, **changed), output, target) == fit_temperature(CLASSES, output, target)


def test_a_few_right_answers_do_not_make_a_model_sure_of_everything():
    output, target = 3 * torch.eye(3).repeat(6, 1), torch.arange(3).repeat(6)
    assert 0.3 < fit_temperature(CLASSES, output, target) < 1
    unanswered = torch.full((9, 1), torch.nan)
    assert fit_temperature(MultiLabel(("q",)), torch.randn(9, 1), unanswered) == pytest.approx(1, abs=1e-3)


def test_of_questions_and_words_too():
    output = 3 * torch.randn(4000, 2, generator=torch.Generator().manual_seed(2))
    yes = (torch.rand(4000, 2, generator=torch.Generator().manual_seed(3)) < (output / 2).sigmoid()).float()
    yes[::7, 1] = torch.nan
    assert fit_temperature(MultiLabel(("q", "r")), output, yes) == pytest.approx(2, rel=0.1)
    words, targets = word_keys([["get", "name"], ["set"]] * 40)
    names = SubTokens(words, positions=2)
    sure = torch.full((80, names.num_outputs), -1.0)
    assert fit_temperature(names, sure + torch.randn(80, names.num_outputs), targets) > 1.5
    assert fit_temperature(Regression(("n",)), torch.randn(4, 1), torch.randn(4, 1)) == 1


def test_brier_is_scikit_learns_and_the_calibration_error_is_worked_by_hand():
    output, target = torch.randn(50, 2), torch.arange(50) % 2
    found = SingleLabel(("no", "yes")).reliability(output, target)
    assert found is not None
    p = output.double().softmax(dim=1)[:, 1].numpy()
    assert found.brier == pytest.approx(brier_score_loss(target.numpy(), p))
    labels = target.float()[:, None].clone()
    labels[:5] = torch.nan
    of_question = MultiLabel(("q",)).reliability(output[:, :1], labels)
    assert of_question is not None
    expected = brier_score_loss(target[5:].numpy(), output[5:, 0].double().sigmoid().numpy())
    assert of_question.brier == pytest.approx(expected)
    sure = torch.tensor([0.9, 0.91, 0.92, 0.2])  # one bin of three, one of one
    came_true = torch.tensor([True, False, True, False])
    assert expected_calibration_error(sure, came_true).item() == pytest.approx((abs(0.9 + 0.91 + 0.92 - 2) + 0.2) / 4)
    assert Regression(("n",)).reliability(output, target) is None


@given(st.integers(1, 300), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_a_threshold_leaves_out_as_many_as_it_may(count, level):
    """The rank is the least with rank >= level (count + 1): what exchangeability asks for, and no more."""
    target = torch.arange(1, count + 1)[:, None].float()
    found = fit_calibration(Regression(("n",)), torch.zeros(count, 1), target)
    percent = math.ceil(100 * level - 1e-9)
    rank = -(-percent * (count + 1) // 100)
    assert found.threshold(level).item() == (rank if rank <= count else math.inf)


@pytest.mark.parametrize("level", [0.7, 0.9])
def test_sets_hold_the_truth_of_every_class_as_often_as_they_say(level):
    generator = torch.Generator().manual_seed(7)
    target = drawn(torch.tensor([[0.7, 0.2, 0.1]]).expand(20_000, 3))
    output = torch.randn(20_000, 3, generator=generator)
    output[torch.arange(20_000), target] += 1  # a model that knows something, and too little to be right
    found = fit_calibration(CLASSES, output[:10_000], target[:10_000])
    possible = CLASSES.is_in_set(output[10_000:] / found.temperature, found.threshold(level))
    assert possible.any(dim=1).all()
    for c in range(3):
        assert possible[target[10_000:] == c, c].double().mean() == pytest.approx(level, abs=0.04)


def test_sets_and_intervals_in_a_table():
    found = Calibration(1.0, tuple((t,) * 99 for t in (0.3, 0.6)), 10)
    output = torch.tensor([[0.0, 0.5], [3.0, 0.0], [-3.0, 0.0]])
    classes = SingleLabel(("no", "yes"))
    assert found.prediction_sets(classes, output[:, :2], 0.9) == {"set(0.9)": ["yes", "no", "yes"]}
    questions = Calibration(1.0, tuple((t,) * 99 for t in (0.9, 0.9, 0.1, 0.1)), 10)
    columns = questions.prediction_sets(MultiLabel(("q", "r")), output, 0.9)
    assert columns == {"q set(0.9)": ["yes|no", "yes", "no"], "r set(0.9)": ["yes", "no", "no"]}
    numbers = Regression(("n", "m"), (10.0, 0.0), (2.0, 1.0))
    columns = found.prediction_sets(numbers, output[:1], 0.9)
    assert columns["n low(0.9)"] == pytest.approx([9.7])
    assert columns["n high(0.9)"] == pytest.approx([10.3])
    assert columns["m low(0.9)"] == pytest.approx([-0.1])
    with pytest.raises(InputError, match="the task is sub-tokens"):
        found.prediction_sets(SubTokens(("a",)), output, 0.9)


@pytest.mark.parametrize("level", [0.0, 0.995, 1.0, -1.0, math.nan])
def test_levels_out_of_reach_are_refused(level):
    with pytest.raises(InputError, match=r"above 0 and at most 0\.99"):
        Calibration(1.0, ((0.5,) * 99,), 10).threshold(level)


def test_a_calibration_is_kept_and_used(folders, capsys):
    folder, dataset = folders[0], load_dataset("MUTAG")
    raw = load_model(folder).predict(dataset)
    with pytest.raises(InputError, match="not calibrated"):
        predict(folder, "MUTAG", level=0.9)
    assert main(["calibrate", str(folder)]) == 0
    assert "before" in capsys.readouterr().out
    model = load_model(folder)
    assert model.calibration is not None
    assert model.calibration.graphs == 19
    output = model.outputs(dataset)
    expected = (output / model.calibration.temperature).softmax(dim=1)[:, 1]
    table = predict(folder, "MUTAG", level=0.8, device="cpu")
    torch.testing.assert_close(torch.tensor(table["p(1)"]), expected)
    assert table["p(1)"] != raw["p(1)"]
    assert table["prediction"] == raw["prediction"]
    assert all(said in row.split("|") for said, row in zip(table["prediction"], table["set(0.8)"], strict=True))
    assert Calibration.from_dict(model.calibration.to_dict(), model.task, "here") == model.calibration
    assert calibrate(folder).calibration == model.calibration  # once more, from raw outputs again


def test_a_damaged_calibration_is_refused(folders):
    path = folders[2] / CALIBRATION
    try:
        other = Calibration(1.0, ((0.5,) * 99,) * 3, 10)  # of three classes
        bad = ({"temperature": 1}, {"temperature": -1, "thresholds": [], "graphs": 3}, [], other.to_dict())
        for content in bad:
            path.write_text(json.dumps(content))
            with pytest.raises(InputError, match=r"calibration\.json: damaged"):
                load_model(folders[2])
    finally:
        path.unlink()


def test_an_ensemble_says_the_mean(folders, capsys):
    dataset, some = load_dataset("MUTAG"), torch.tensor([3, 14, 15])
    both = Ensemble.load(folders[:2])
    each = [torch.tensor(load_model(folder).predict(dataset, some)["p(1)"]) for folder in folders[:2]]
    table = both.predict(dataset, some)
    torch.testing.assert_close(torch.tensor(table["p(1)"]), (each[0] + each[1]) / 2)
    torch.testing.assert_close(torch.tensor(table["spread p(1)"]), (each[0] - each[1]).abs() / 2)
    assert main(["predict", *map(str, folders[:2]), "MUTAG", "--graphs", "3,14,15", "--level", "0.5"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["p(1)"]) for row in rows] == pytest.approx(table["p(1)"], abs=1e-6)
    assert {"set(0.5)", "spread p(1)"} <= set(rows[0])


def test_members_of_an_ensemble_must_fit_together(folders):
    with pytest.raises(InputError, match="trained on other graphs"):
        load_models([folders[0], folders[2]], is_calibrated=True)
    assert isinstance(load_models([folders[0], folders[2]]), Ensemble)
    one = load_model(folders[0])
    with pytest.raises(InputError, match="model 2 has another"):
        Ensemble.of([one, replace(one, task=SingleLabel(("x", "y")))])


def test_numbers_learned_on_other_scales_are_averaged_in_their_units():
    ours, theirs = Regression(("n",), (0.0,), (1.0,)), Regression(("n",), (10.0,), (5.0,))
    output = torch.tensor([[2.0], [-1.0]])  # 20 and 5 in units
    torch.testing.assert_close(ours.convert_output(output, theirs), torch.tensor([[20.0], [5.0]]))
    torch.testing.assert_close(average_outputs(ours, torch.stack([output, output + 2])), output + 1)


def test_pooled_probabilities_are_means():
    each = torch.randn(3, 5, 2)
    torch.testing.assert_close(average_outputs(MultiLabel(("q", "r")), each).sigmoid(), each.sigmoid().mean(dim=0))
    torch.testing.assert_close(
        average_outputs(SingleLabel(("a", "b")), each).softmax(1), each.softmax(dim=2).mean(dim=0)
    )
