"""Every shipped recipe runs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt import load_dataset, read_recipe, train
from mnagt.data import where_is
from mnagt.data.packed import PackedDataset
from mnagt.tasks import MultiLabel
from mnagt.training.config import RunConfig

FOLDER = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(FOLDER.rglob("*.toml"))
GRAPHS = 60
LARGE = ("ogbg-molpcba", "ogbg-code2")
"""Data sets that a machine may lack, even one that must have the others."""


def for_a_moment(config: RunConfig) -> RunConfig:
    """The recipe with the epochs taken out."""
    return replace(config, train=replace(config.train, epochs=1), device="cpu")


def some(dataset: PackedDataset) -> PackedDataset:
    """A few graphs of the data set, with all of its classes and categories; half of them answer a question with yes."""
    small = (dataset.sizes <= dataset.sizes.float().quantile(0.9)).nonzero()[:, 0]
    chosen = small[torch.linspace(0, len(small) - 1, GRAPHS).long()]
    if isinstance(dataset.task, MultiLabel):
        first = dataset.targets[small, 0]
        chosen = torch.cat([small[first == answer][: GRAPHS // 2] for answer in (0, 1)])
    batch = dataset.batch(chosen)
    return PackedDataset.from_batch(
        dataset.name, dataset.task, batch, label_counts=dataset.label_counts, vocabularies=dataset.vocabularies
    )


def test_there_are_recipes():
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_recipe_says_what_it_is_and_runs(path):
    assert path.read_text().startswith("# ")
    config = read_recipe(path)
    assert path.parent.name.startswith(config.dataset.lower())
    run = train(replace(for_a_moment(config), dataset="MUTAG"), dataset=some(load_dataset("MUTAG")))
    assert 0 <= run.result.test[run.result.metric] <= 1


@pytest.mark.real_data
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_recipe_runs_on_its_own_data(path, data_root):
    config = for_a_moment(read_recipe(path))
    is_required = os.environ.get("MNAGT_REQUIRE_DATA") == "1" and config.dataset not in LARGE
    if where_is(config.dataset, data_root) is None and not is_required:
        pytest.skip(f"{config.dataset} is not in {data_root}")
    run = train(config, dataset=some(load_dataset(config.dataset, root=data_root)))
    assert run.result.epoch == 1
