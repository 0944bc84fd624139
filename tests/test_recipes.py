"""Shipped recipes: each gives the run that it gave in version 0.1, and trains."""

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset, read_recipe, train
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import locate_dataset
from mnagt.experiments.ledger import resolve_config
from mnagt.models.registry import resolve_settings
from mnagt.runs.config import RunConfig
from mnagt.runs.recipes import parse_run_config
from mnagt.tasks import MultiLabel

BEFORE = json.loads((Path(__file__).parent / "fixtures" / "recipes-v0.1.json").read_text())
RECIPES = sorted(BEFORE["recipes"])
NEW = [
    *(f"{dataset}/wl-linear" for dataset in ("nci1", "nci109", "collab")),
    *(f"ogbg-{dataset}/morgan-forest" for dataset in ("molbace", "molesol", "moltox21")),
    *(f"nci1/{name}" for name in ("counts", "gin-wl", "gps-wl")),
]
"""Recipes that came after 0.1."""
GRAPHS = 60
LARGE = ("ogbg-molpcba", "ogbg-code2")
"""Data sets that a machine may lack, even one that must have the others."""


ALIKE = {
    "NCI109": "NCI1",
    "ogbg-code2": "pypi_ast",
    **dict.fromkeys(("ogbg-molbbbp", "ogbg-molhiv", "ogbg-moltox21"), "ogbg-molbace"),
    "ogbg-molfreesolv": "ogbg-molesol",
}
"""Data sets with the columns and the kind of targets of another."""


def choose_different(names: list[str]) -> list[str]:
    """One recipe of those that differ in the data set, among alike ones, or in how long they train."""
    chosen: dict[tuple[str, str, str], str] = {}
    for name in sorted(names, key=lambda name: name.startswith(LARGE)):
        config = read_recipe(name)
        settings = json.dumps(config.settings, sort_keys=True)
        chosen.setdefault((config.model, settings, ALIKE.get(config.dataset, config.dataset)), name)
    return sorted(chosen.values())


def shorten(config: RunConfig) -> RunConfig:
    """The recipe with one epoch on the CPU."""
    return replace(config, train=replace(config.train, epochs=1), device="cpu")


@cache
def take_some(name: str, root: Path) -> PackedDataset:
    """A few graphs of a data set, with all of its classes and categories; of a task, half are positive."""
    dataset = load_dataset(name, root=root)
    small = (dataset.sizes <= dataset.sizes.float().quantile(0.9)).nonzero()[:, 0]
    chosen = small[torch.linspace(0, len(small) - 1, GRAPHS).long()]
    if isinstance(dataset.task, MultiLabel):
        first = dataset.targets[small, 0]
        chosen = torch.cat([small[first == answer][: GRAPHS // 2] for answer in (0, 1)])
    batch = dataset.batch(chosen)
    return PackedDataset.from_batch(
        dataset.name, dataset.task, batch, label_counts=dataset.label_counts, vocabularies=dataset.vocabularies
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_the_run_that_it_gave_in_version_0_1(name):
    old, run = BEFORE["recipes"][name], BEFORE["run"]
    settings = BEFORE["settings"][old["model"]] | old.get("settings", {})
    parts = {part: run[part] | old.get(part, {}) for part in ("train", "split")}
    expected = parse_run_config({**run, **old, **parts, "settings": settings}, name)
    assert resolve_config(read_recipe(name)) == resolve_config(expected)


@pytest.mark.real_data
@pytest.mark.parametrize("name", choose_different([*RECIPES, *NEW]))
def test_a_recipe_trains_on_its_own_data(name, data_root):
    config = shorten(read_recipe(name))
    is_required = os.environ.get("MNAGT_REQUIRE_DATA") == "1" and config.dataset not in LARGE
    if locate_dataset(config.dataset, data_root) is None and not is_required:
        pytest.skip(f"{config.dataset} is not in {data_root}")
    run = train(config, dataset=take_some(config.dataset, data_root))
    features, outputs = run.trained.model.features, run.trained.task.num_outputs
    assert run.trained.settings == resolve_settings(config.model, config.settings, features, outputs)
    assert run.history[0]["loss"] > 0
