"""The settings that a search may change: a range or a list of values for each, by its name."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from mnagt.errors import InputError, join_names, quote
from mnagt.migrations import rename_settings
from mnagt.models.registry import MODELS, full_settings
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.settings import from_dict, read_toml


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both among them; whole ones if both are whole."""

    low: int | float
    high: int | float
    log: bool = False
    """Drawn evenly on a logarithmic scale."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InputError(f"low must be below high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise InputError(f"a logarithmic range begins above 0, got low = {self.low}")

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


Space = dict[str, Range | tuple]
"""The range or the values of each setting that is searched."""

RANGES: Space = {
    "lr": Range(1e-4, 1e-2, log=True),
    "weight_decay": Range(1e-6, 1.0, log=True),
    "batch_size": (32, 64, 128, 256),
    "dim": (32, 64, 128),
    "depth": Range(2, 6),
    "gnn_depth": Range(2, 6),
    "max_hop": Range(0, 4),
    "hops": Range(2, 4),
    "heads": (1, 2, 4, 8),
    "readout": ("mean", "sum"),
    "wl_iterations": Range(0, 6),
    "dropout": Range(0.0, 0.5),
    "gnn_dropout": Range(0.0, 0.5),
    "head_dropout": Range(0.0, 0.5),
    "wl_dropout": Range(0.0, 0.8),
    "radius": Range(1, 3),
    "min_samples_leaf": Range(1, 8),
}
"""What is searched unless a ``[space]`` table says otherwise; a setting that is not here stays as it is. Widths and
heads are powers of two, so that heads divide widths. attention_dropout is left out because it slows every step."""

SHARED = ("epochs", "selection_window", "seed", "cuda_graphs", "activation_checkpointing", "checkpoint_seconds")
"""Settings of training that all trials share: they make trials comparable, or do not change the score."""
TRAINING = {field.name for field in fields(TrainConfig)} - set(SHARED)
"""Settings of training that a search may change."""


def search_space(
    config: RunConfig, given: Mapping[str, Any] | Path | str | None = None, only: Sequence[str] | None = None
) -> Space:
    """The part of ``RANGES`` that concerns ``config``, widened to hold it, with ``given`` going before.

    ``given`` is a ``[space]`` table, or a TOML file with one: ``{low, high, log}`` is a range, a list holds the values
    to choose from, and any other value is one to stay at. With ``only``, the rest stays as ``config`` has it.
    """
    where = "space"
    if isinstance(given, Path | str):
        where, given = f"{given}: space", read_space(given)
    settings = _settings(config)
    space = {
        name: _widen(RANGES[name], value)
        for name, value in settings.items()
        if name in RANGES and value is not None and not (name.startswith("wl_") and settings["wl_iterations"] == 0)
    }
    for name, entry in rename_settings(given or {}, settings).items():
        if name in SHARED:
            raise InputError(f"{where}: {name} is the same for all trials; take it out, and set it for the run")
        try:
            lookup(settings, name, f"setting of {config.model}")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        space[name] = _entry(config, name, entry, where)
    if only is not None:
        space = {name: lookup(space, name, "range for the setting") for name in only}
    if not searched_settings(space):
        raise InputError(f"{where}: nothing to search; give a setting a range or several values")
    return space


def searched_settings(space: Space) -> list[str]:
    """The settings that have more than one value."""
    return [name for name, entry in space.items() if isinstance(entry, Range) or len(entry) > 1]


def read_space(path: Path | str) -> dict[str, Any]:
    """The ``[space]`` table of a TOML file."""
    content = read_toml(Path(path))
    if content.keys() != {"space"} or not isinstance(content["space"], dict):
        raise InputError(f"{path}: expected a table [space] and nothing else, got: {join_names(content)}")
    return content["space"]


def with_settings(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """``config`` with these settings, of training or of the model."""
    training = {name: value for name, value in values.items() if name in TRAINING}
    return replace(
        config,
        train=replace(config.train, **training),
        settings=config.settings | {name: value for name, value in values.items() if name not in training},
    )


def starting_point(config: RunConfig, space: Space) -> dict[str, Any]:
    """The settings of ``config`` that lie in ``space``."""
    settings = _settings(config)
    return {name: settings[name] for name, entry in space.items() if settings[name] in entry}


def _settings(config: RunConfig) -> dict[str, Any]:
    """All settings that can be searched, as ``config`` has them."""
    if MODELS[config.model].is_fitted_by_sklearn:
        return full_settings(config.model, config.settings)
    training = {name: value for name, value in asdict(config.train).items() if name in TRAINING}
    return training | full_settings(config.model, config.settings)


def _entry(config: RunConfig, name: str, entry: Any, where: str) -> Range | tuple:
    """A line of a ``[space]`` table, every value in it checked as the setting's own."""
    where = f"{where}: {name}"

    def check(value: Any) -> Any:
        if name in TRAINING:
            return getattr(from_dict(TrainConfig, asdict(config.train) | {name: value}, where=where), name)
        settings = full_settings(config.model, config.settings) | {name: value}
        return getattr(from_dict(MODELS[config.model].config, settings, where=where), name)

    if isinstance(entry, Mapping):
        if not {"low", "high"} <= entry.keys():
            raise InputError(f"{where}: a range needs low and high, got: {join_names(entry)}")
        span = from_dict(Range, entry, where=where)
        return replace(span, low=check(span.low), high=check(span.high))
    if not isinstance(entry, list | tuple):
        return (check(entry),)
    values = tuple(check(value) for value in entry)
    if not values or len(set(values)) < len(values):
        raise InputError(f"{where}: expected values to choose from, each once, got {quote(list(values))}")
    return values


def _widen(entry: Range | tuple, value: Any) -> Range | tuple:
    """``entry`` with ``value`` in it. A logarithmic range cannot take in zero, and stays."""
    if value in entry or (isinstance(entry, Range) and entry.log and value <= 0):
        return entry
    if isinstance(entry, Range):
        return replace(entry, low=min(entry.low, value), high=max(entry.high, value))
    return tuple(sorted((*entry, value)))
