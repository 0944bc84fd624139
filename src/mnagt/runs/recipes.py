"""Recipes: settings of runs in TOML files, one file a data set.

Settings at the top of a file hold for all its recipes. A table ``[models.NAME]`` adds those of one recipe::

    dataset = "NCI1"
    train.epochs = 100

    [models.gin]
    train.weight_decay = 0.3

    [models.gin-wide]
    model = "gin"
    settings.dim = 256

The model is the one that the table is named after, unless it says ``model``. ``default`` at the top names the recipe to
take when no model is named, if that is not ``mnagt``. A file without ``[models]`` is one recipe.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mnagt.data.registry import DATASETS
from mnagt.errors import InputError, join_names
from mnagt.migrations import rename_settings
from mnagt.models.registry import MODELS
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig
from mnagt.settings import from_dict, read_toml

_log = logging.getLogger(__name__)


def shipped_recipe(dataset: str, model: str) -> RunConfig | None:
    """The recipe that comes with the package for a model on a data set, if there is one."""
    file = _shipped_file(dataset)
    has_recipe = file.is_file() and model in read_toml(file)["models"]
    return _read_file(file, model)[model] if has_recipe else None


def find_recipe(dataset: str | None, model: str | None) -> str:
    """The name of the recipe that comes with the package for a model on a data set; 'none' if there is none.

    Without a model it is the file's default.

    >>> find_recipe("NCI1", None), find_recipe("MUTAG", "gin")
    ('nci1/mnagt-wl', 'none')
    """
    if dataset is None or dataset not in DATASETS or not (file := _shipped_file(dataset)).is_file():
        return "none"
    model = model or str(read_toml(file).get("default", RunConfig.model))
    return "none" if shipped_recipe(dataset, model) is None else f"{dataset.lower()}/{model}"


def log_recipe(name: str) -> None:
    """Tell the user which recipe of the package was found, if one was."""
    if name != "none" and os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
        _log.info("settings of the recipe %s; options override them, the recipe 'none' ignores them", name)


def read_recipe(name: Path | str) -> RunConfig:
    """One recipe: a TOML file with one, FILE/NAME of a file with several, or DATASET/MODEL of the package.

    With the name 'none', the defaults.

    >>> read_recipe("nci1/gin").train.weight_decay
    0.3
    """
    if name == "none":
        return RunConfig()
    recipes = read_recipes(name)
    if len(recipes) > 1:
        raise InputError(f"{name}: has several recipes; add the name of one, /NAME; there are: {join_names(recipes)}")
    return next(iter(recipes.values()))


def read_recipes(name: Path | str) -> dict[str, RunConfig]:
    """The recipes of a TOML file by their names; all those of the package for a data set; or one, as ``read_recipe``.

    >>> list(read_recipes("ogbg-molhiv"))
    ['mnagt', 'gin-virtual', 'gin', 'gps', 'morgan-forest']
    """
    path = Path(name)
    if not path.exists():
        if path.parent.is_file():
            return _read_file(path.parent, path.name)
        dataset, *model = path.parts or ("",)
        if len(model) < 2 and _shipped_file(dataset).is_file():
            return _read_file(_shipped_file(dataset), *model)
    return _read_file(path)


def _read_file(file: Path, chosen: str | None = None) -> dict[str, RunConfig]:
    """The recipes in ``file``, or only the one called ``chosen``."""
    content = read_toml(file)
    tables, _ = content.pop("models", None), content.pop("default", None)
    if tables is None and chosen is None:
        return {file.stem: _parse(content, str(file))}
    is_table = isinstance(tables, Mapping) and all(isinstance(table, Mapping) for table in tables.values())
    if not tables or not is_table:
        raise InputError(f"{file}: expected a table [models.NAME] for each recipe")
    if chosen is not None:
        tables = {chosen: lookup(tables, chosen, f"recipe in {file.name} called")}
    return {
        name: _parse(_merge({"model": name, **content}, table), f"{file}: {name}") for name, table in tables.items()
    }


def _shipped_file(dataset: str) -> Path:
    package = Path(__file__).parents[1]
    folder = next(path for path in (package / "recipes", package.parents[1] / "recipes") if path.is_dir())
    return folder / f"{dataset.lower()}.toml"


def _merge(common: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """``common`` with the values of ``table``, whose sub-tables are merged too."""
    merged = dict(common)
    for key, value in table.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            value = {**merged[key], **value}
        merged[key] = value
    return merged


def _parse(content: Mapping[str, Any], where: str) -> RunConfig:
    """The settings of a run from a recipe; those of the model are checked too."""
    config = parse_run_config(content, where)
    from_dict(MODELS[config.model].config, config.settings, where=f"{where}: settings")
    return config


def parse_run_config(values: Mapping[str, Any], where: str) -> RunConfig:
    """The settings of a run from a recipe or record of any version; ``where`` is for the message."""
    config = from_dict(RunConfig, values, where=where)
    try:
        names = [field.name for field in fields(lookup(MODELS, config.model, "model").config)]
        return replace(config, settings=rename_settings(config.settings, names))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
