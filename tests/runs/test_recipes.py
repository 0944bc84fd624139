"""A recipe file holds one run, or common settings and a table for each recipe."""

from pathlib import Path

import pytest

from mnagt.data.registry import DATASETS
from mnagt.errors import InputError
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.recipes import find_recipe, read_recipe, read_recipes, shipped_recipe

SEVERAL = """
dataset = "MUTAG"
[settings]
dim = 8
[train]
epochs = 3
lr = 0.01
[models.gin]
train.epochs = 5
[models.wide]
model = "gin"
settings.dim = 32
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mutag.toml").write_text(SEVERAL)
    return tmp_path / "mutag.toml"


def test_a_table_adds_to_what_all_recipes_of_a_file_share(file):
    assert read_recipes(file) == {
        "gin": RunConfig("MUTAG", "gin", {"dim": 8}, TrainConfig(epochs=5, lr=0.01)),
        "wide": RunConfig("MUTAG", "gin", {"dim": 32}, TrainConfig(epochs=3, lr=0.01)),
    }
    assert read_recipe(file / "wide") == read_recipes(file)["wide"]


def test_of_several_recipes_one_has_to_be_named(file):
    with pytest.raises(InputError, match=r"mutag.toml: has several recipes; .* there are: gin, wide"):
        read_recipe(file)
    with pytest.raises(InputError, match=r"no recipe in mutag.toml called 'wider'; did you mean 'wide'\?"):
        read_recipe(file / "wider")


@pytest.mark.parametrize("models", ["models = 3", "models = {}", "[models]\ngin = 3"])
def test_tables_of_recipes_are_checked(tmp_path, models):
    (tmp_path / "it.toml").write_text(f'dataset = "MUTAG"\n{models}\n')
    with pytest.raises(InputError, match=r"it.toml: expected a table \[models.NAME\] for each recipe"):
        read_recipes(tmp_path / "it.toml")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("settings.dimm = 3", "gin: settings: .*dimm"),
        ("train.epochs = 0", "gin: .*epochs must be at least 1"),
        ("model = 'gim'", "gin: no model 'gim'; did you mean 'gin'?"),
    ],
)
def test_an_error_names_the_recipe(tmp_path, table, message):
    (tmp_path / "it.toml").write_text(f'dataset = "MUTAG"\n[models.gin]\n{table}\n')
    with pytest.raises(InputError, match=message):
        read_recipes(tmp_path / "it.toml")


def test_recipes_of_the_package_are_found_by_data_set_and_model():
    recipes = read_recipes("nci1")
    assert shipped_recipe("NCI1", "gin") == read_recipe("nci1/gin") == recipes["gin"]
    assert {"mnagt", "wl-linear", "counts", "gin-wl", "gps-wl"} <= recipes.keys()
    assert shipped_recipe("NCI1", "nothing") is None
    assert shipped_recipe("MUTAG", "gin") is None


def test_without_a_model_a_data_set_has_the_default_of_its_file():
    assert find_recipe("NCI1", None) == "nci1/mnagt-wl"
    assert find_recipe("NCI1", "gin") == "nci1/gin"
    assert find_recipe("ogbg-molbace", None) == "ogbg-molbace/mnagt"
    assert find_recipe("my.csv", None) == "none"


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_default_of_a_data_set_is_a_recipe(dataset):
    name = find_recipe(dataset, None)
    assert name == "none" or read_recipe(name).dataset.lower() == dataset.lower()
