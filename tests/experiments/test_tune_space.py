"""A search looks where it is told to, and says what it does not understand."""

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mnagt.errors import InputError
from mnagt.experiments.ledger import resolve_config
from mnagt.experiments.tune_space import (
    RANGES,
    Range,
    read_space,
    search_space,
    searched_settings,
    starting_point,
    with_settings,
)
from mnagt.models.registry import MODELS
from mnagt.runs.config import RunConfig, TrainConfig

GIN = RunConfig("MUTAG", "gin")


CHOOSES_ITSELF = {"wl-linear"}
"""Models whose settings validation chooses while they are fitted."""
SEARCHED = [name for name in MODELS if name not in CHOOSES_ITSELF]


@pytest.mark.parametrize("name", SEARCHED)
def test_every_model_can_be_searched_and_starts_from_itself(name):
    config = RunConfig("MUTAG", name)
    space = search_space(config)
    expected = {"lr", "weight_decay", "dim"} | ({"depth", "dropout"} if name != "counts" else {"wl_dropout"})
    assert ({"min_samples_leaf"} if MODELS[name].is_fitted_by_sklearn else expected) <= space.keys()
    assert starting_point(config, space).keys() == space.keys()
    assert resolve_config(with_settings(config, starting_point(config, space))) == resolve_config(config)


def drawn_from(entry: Range | tuple, chance: random.Random) -> Any:
    if isinstance(entry, Range):
        value = chance.uniform(entry.low, entry.high)
        return round(value) if isinstance(entry.low, int) else value
    return chance.choice(entry)


@pytest.mark.parametrize("name", SEARCHED)
def test_whatever_is_drawn_can_be_built(name):
    config, chance = RunConfig("MUTAG", name), random.Random(7)
    for _ in range(20):
        drawn = {setting: drawn_from(entry, chance) for setting, entry in search_space(config).items()}
        run = resolve_config(with_settings(config, drawn))
        settings = run["train"] | run["settings"]
        assert settings | drawn == settings


def test_a_name_is_a_setting_of_the_model_or_of_training_and_never_both():
    training = {field.name for field in fields(TrainConfig)}
    models = {field.name for entry in MODELS.values() for field in fields(entry.config)}
    assert not training & models
    assert RANGES.keys() <= training | models


@pytest.mark.parametrize("name", sorted(CHOOSES_ITSELF))
def test_a_model_that_chooses_by_validation_has_nothing_to_search_unless_told(name):
    with pytest.raises(InputError, match="space: nothing to search"):
        search_space(RunConfig("MUTAG", name))
    assert search_space(RunConfig("MUTAG", name), {"C": [0.1, 1]}) == {"C": (0.1, 1.0)}
    with pytest.raises(InputError, match="no setting of wl-linear 'lr'"):
        search_space(RunConfig("MUTAG", name), {"lr": [0.1, 1]})


def test_settings_without_effect_are_not_searched():
    assert "wl_dropout" not in search_space(GIN)
    assert {"wl_dropout", "wl_iterations"} <= search_space(RunConfig("MUTAG", "gin", {"wl_iterations": 3})).keys()


def test_ranges_widen_to_hold_the_recipe():
    config = RunConfig("MUTAG", "gin", {"dim": 48, "depth": 9, "readout": "max"}, TrainConfig(lr=0.05))
    space = search_space(config)
    assert space["dim"] == (32, 48, 64, 128)
    assert space["depth"] == Range(2, 9)
    assert space["lr"] == Range(1e-4, 0.05, log=True)
    assert space["readout"] == ("max", "mean", "sum")


def test_zero_has_no_place_on_a_logarithmic_scale():
    config = RunConfig("MUTAG", "gin", train=TrainConfig(weight_decay=0.0))
    space = search_space(config)
    assert space["weight_decay"] == RANGES["weight_decay"]
    assert "weight_decay" not in starting_point(config, space)


def test_a_table_goes_before_the_ranges(tmp_path: Path):
    (tmp_path / "it.toml").write_text(
        '[space]\nlr = { low = 1e-3, high = 1, log = true }\nreadout = ["sum", "max"]\ndim = 24\nclip = [0, 1]\n'
    )
    space = search_space(GIN, tmp_path / "it.toml")
    assert space == search_space(GIN) | {
        "lr": Range(0.001, 1.0, log=True),
        "readout": ("sum", "max"),
        "dim": (24,),
        "clip": (0.0, 1.0),
    }
    assert isinstance(space["lr"].high, float)  # type: ignore[union-attr]
    assert "dim" not in searched_settings(space)
    assert "dim" not in starting_point(GIN, space)


def test_only_some_settings_are_searched():
    assert search_space(GIN, {"clip": [1, 2]}, only=("clip", "dim")) == {"clip": (1.0, 2.0), "dim": RANGES["dim"]}
    with pytest.raises(InputError, match="no range for the setting 'conv'; there are: batch_size"):
        search_space(GIN, only=("conv",))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"lrr": [1]}, "space: no setting of gin 'lrr'; did you mean 'lr'? there are: batch_size"),
        ({"max_hop": [1]}, "space: no setting of gin 'max_hop'"),
        ({"epochs": [10, 20]}, "space: epochs is the same for all trials; take it out, and set it for the run"),
        ({"depth": {"low": 2.5, "high": 4}}, "space: depth: depth: expected a whole number, got 2.5"),
        ({"depth": {"low": 4, "high": 2}}, "space: depth: low must be below high, got 4 and 2"),
        ({"depth": {"low": 0, "high": 2}}, "space: depth: depth must be at least 1, got 0"),
        ({"lr": {"low": 0, "high": 1, "log": True}}, "space: lr: a logarithmic range begins above 0, got low = 0"),
        ({"lr": {"low": 1}}, "space: lr: a range needs low and high, got: low"),
        ({"lr": {"low": 1, "high": 2, "step": 1}}, "space: lr: no setting 'step'; there are: high, log, low"),
        ({"readout": {"low": 0, "high": 1}}, "space: readout: readout: expected a word, got 0"),
        ({"readout": ["summ"]}, "space: readout: readout must be one of"),
        ({"dim": []}, "space: dim: expected values to choose from, each once, got []"),
        ({"dim": [8, 8]}, "space: dim: expected values to choose from, each once, got [8, 8]"),
        ({"dim": ["wide"]}, "space: dim: dim: expected a whole number, got 'wide'"),
    ],
    ids=str,
)
def test_what_cannot_be_searched_is_named(told, said):
    with pytest.raises(InputError) as error:
        search_space(GIN, told)
    assert str(error.value).startswith(said)


def test_a_search_needs_something_to_vary():
    with pytest.raises(InputError, match="space: nothing to search; give a setting a range or several values"):
        search_space(GIN, {"dim": 8}, only=("dim",))


@pytest.mark.parametrize("content", ["lr = 3", "[space]\n[train]\n", "space = 3", ""])
def test_a_file_holds_one_table(content, tmp_path: Path):
    (tmp_path / "it.toml").write_text(content)
    with pytest.raises(InputError, match=r"it\.toml: expected a table \[space\] and nothing else, got"):
        read_space(tmp_path / "it.toml")
