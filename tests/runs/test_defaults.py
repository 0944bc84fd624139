"""Defaults that follow the data."""

import json
from dataclasses import replace

import pytest
import torch

from mnagt import load_dataset, train
from mnagt.cli import main
from mnagt.data.splits import Split
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.defaults import SMALL, defaults_by_size, describe_idle_settings, resolve_defaults
from mnagt.runs.options import BY_DATA

ALL = BY_DATA


def resolve(config: RunConfig, graphs: int = 150) -> RunConfig:
    """The settings for MUTAG, of which so many graphs are trained on."""
    mutag = load_dataset("MUTAG")
    return resolve_defaults(config, mutag, Split(torch.arange(graphs), torch.arange(150, 170), torch.arange(170, 188)))


@pytest.mark.parametrize(
    ("graphs", "expected"),
    [(1, (32,)), (150, (32,)), (900, (64,)), (4095, (256,)), (SMALL, ())],
)
def test_the_rule(graphs, expected):
    assert tuple(defaults_by_size(graphs).values()) == expected


def test_only_what_is_named_follows_the_rule():
    config = RunConfig("x", "mnagt", {"dim": 48}, TrainConfig(batch_size=7, epochs=9), by_data=ALL)
    found = resolve(config)
    assert (found.settings, found.train.epochs) == ({"dim": 48}, 9)
    assert (found.train.batch_size, found.by_data) == (32, ())
    assert resolve(replace(config, by_data=())) == replace(config, by_data=())
    assert resolve(RunConfig("x", "gin", by_data=ALL)) == RunConfig("x", "gin")
    of_wide = resolve(RunConfig("x", "mnagt-wl", by_data=ALL))
    assert (of_wide.settings, of_wide.train.batch_size) == ({}, 32)
    assert resolve(RunConfig("x")) == RunConfig("x"), "settings in full and recipes stay as they are"


def test_of_two_classes_of_molecules_roc_auc_chooses_the_epoch():
    assert resolve(RunConfig("x.csv", "gin", by_data=ALL)).train.metric == "rocauc"
    assert resolve(RunConfig("x.csv", "gin", train=TrainConfig(metric="mcc"), by_data=())).train.metric == "mcc"
    assert resolve(RunConfig("MUTAG", "gin", by_data=ALL)).train.metric == "auto"
    mutag = load_dataset("MUTAG")
    order = mutag.targets.argsort()
    split = Split(order[20:], order[:10], order[10:20])  # validation graphs are of one class
    assert resolve_defaults(RunConfig("x.csv", "gin", by_data=ALL), mutag, split).train.metric == "auto"


def test_python_leaves_open_what_the_command_line_does(tmp_path):
    options = {"dim": 8, "depth": 1, "head_dim": 4, "epochs": 1, "device": "cpu"}
    words = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), str(value))]
    assert main(["train", "MUTAG", *words, "--out", str(tmp_path / "a")]) == 0
    train("MUTAG", out=tmp_path / "b", **options)
    (one, other) = (json.loads((tmp_path / name / "run.json").read_text())["config"] for name in "ab")
    assert one == other
    assert one["train"]["batch_size"] == 32


def test_the_command_line_sets_what_neither_recipe_nor_options_do(tmp_path, capsys):
    words = ["train", "MUTAG", "--depth", "1", "--head-dim", "8", "--epochs", "1", "--device", "cpu"]
    assert main([*words, "--dim", "16", "--out", str(tmp_path / "a")]) == 0
    config = json.loads((tmp_path / "a" / "run.json").read_text())["config"]
    assert config["settings"]["dim"] == 16
    assert (config["train"]["batch_size"], config["by_data"]) == (32, [])
    (tmp_path / "mine.toml").write_text("train.lr = 0.01\nsettings.dim = 8\n")
    assert main([*words, "--recipe", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "b")]) == 0
    config = json.loads((tmp_path / "b" / "run.json").read_text())["config"]
    assert (config["train"]["batch_size"], config["train"]["lr"]) == (256, 0.01)


def test_settings_that_do_nothing_are_named():
    assert describe_idle_settings(RunConfig("MUTAG", "gin", {}, TrainConfig(lr=0.5, patience=3))) == []
    (line,) = describe_idle_settings(RunConfig("MUTAG", "wl-linear", {}, TrainConfig(lr=0.5, patience=3)))
    assert line.endswith("lr, patience have no effect on it")
    (line,) = describe_idle_settings(RunConfig("MUTAG", "gin", {}, TrainConfig(freeze="encoder")))
    assert "--from FOLDER" in line
