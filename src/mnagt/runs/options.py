"""Settings of a run by the names of the options of ``mnagt train``."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mnagt.data.table_config import TableConfig
from mnagt.models.registry import MODELS
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.settings import convert_fields, describe_fields

RUN_OPTIONS = {"device": "device", "smiles": "smiles", "target": "targets", "task": "task"}
"""The options that set fields of ``RunConfig``."""
BY_DATA = ("batch_size", "metric", "epochs")
"""The settings for which ``runs/defaults.py`` has a rule."""


class Option(NamedTuple):
    """What an option sets: a field of a part of the settings ('run', 'train', 'split', 'table' or 'model')."""

    part: str
    field: str


def list_options(model: str) -> dict[str, Option]:
    """All options of a run of ``model`` by name: epochs, split, split_seed, dim, ...

    >>> list_options("gin")["split_seed"]
    Option(part='split', field='seed')
    """
    split = {"split" if name == "kind" else f"split_{name}": name for name in describe_fields(SplitConfig)}
    parts = {
        "run": RUN_OPTIONS,
        "train": {name: name for name in describe_fields(TrainConfig)},
        "split": split,
        "table": {name: name for name in describe_fields(TableConfig)},
        "model": {name: name for name in describe_fields(lookup(MODELS, model, "model").config)},
    }
    return {name: Option(part, field) for part, names in parts.items() for name, field in names.items()}


def leave_open(config: RunConfig, given: Container[str]) -> RunConfig:
    """``config``, in which settings that are not ``given`` follow the data where there is a rule (``by_data``)."""
    return replace(config, by_data=tuple(name for name in BY_DATA if name not in given))


def apply_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """``config`` with these settings in place of its own.

    Another ``model`` has its defaults. ``target`` is a name or a list of names.

    Raises:
        InputError: Names an option that there is not, with the nearest one, or a value of another type.

    >>> apply_options(RunConfig("MUTAG", "gin"), {"epochs": 3, "dim": 8, "split_seed": 1}).train.epochs
    3
    """
    options = dict(options)
    model = options.pop("model", config.model)
    settings = dict(config.settings) if model == config.model else {}
    table = list_options(model)
    parts: dict[str, dict[str, Any]] = {"run": {}, "train": {}, "split": {}, "table": {}, "model": {}}
    for name, value in options.items():
        part, field = lookup(table, name, "setting")
        parts[part][field] = (value,) if name == "target" and isinstance(value, str) else value
    return replace(
        config,
        model=model,
        settings=settings | convert_fields(MODELS[model].config, parts["model"]),
        train=replace(config.train, **convert_fields(TrainConfig, parts["train"])),
        split=replace(config.split, **convert_fields(SplitConfig, parts["split"])),
        table=replace(config.table, **convert_fields(TableConfig, parts["table"])),
        **convert_fields(RunConfig, parts["run"]),
    )
