"""The paper's tables and figures as experiments: rows, data sets and trials. To add one: an entry of EXPERIMENTS."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mnagt.errors import InputError
from mnagt.experiments.config import FOLDS, Protocol, ReproduceConfig
from mnagt.experiments.trials import with_seed
from mnagt.runs.config import RunConfig, SplitConfig
from mnagt.runs.recipes import read_recipe, shipped_recipe
from mnagt.runs.split import resolve_split_kind

OURS = "mnagt"
PAPER = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
"""What the paper prints: Li, Chen, He, *Adaptive Multi-Neighborhood Attention based Transformer*, 2022."""


class Printed(NamedTuple):
    """A score in the paper; accuracies are percentages, scores on OGB's data sets shares."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Row:
    """A line of a table: a model, and what it has set otherwise than its recipe."""

    name: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    """The row that it is paired with."""
    at: int | str | None = None
    """What was varied: its place in a figure."""
    test: Mapping[str, Printed] = field(default_factory=dict)
    """The paper's figure on each data set."""
    valid: Mapping[str, Printed] = field(default_factory=dict)
    count: Mapping[str, str] = field(default_factory=dict)
    """The paper's number of parameters."""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper: pure description."""

    title: str
    about: str
    kind: Literal["scores", "ablation", "sensitivity", "parameters"]
    rows: tuple[Row, ...]
    datasets: tuple[str, ...]
    seeds: int = 10
    axis: str = ""
    """What is varied, for a figure."""


TU = ("NCI1", "NCI109", "COLLAB")
OGB = ("ogbg-molpcba", "ogbg-code2")
MODEL_OF: dict[str, str] = PAPER["models"]
"""Our models by the names that the paper has for them."""
DEFAULT = Row(OURS, OURS)
COUNTS = Row("linear over WL counts", "wl-linear", against=OURS)


def _row(name: str, **known: Any) -> Row:
    """The model that the paper calls ``name``."""
    return Row("MNA-GT, as printed" if name == "MNA-GT" else name, MODEL_OF[name], **known)


def _read_rows(table: str) -> Iterator[Row]:
    """The rows of a table of the paper, to be compared with our default."""
    for name in PAPER[table]["test"]:
        scores = {
            part: {data: Printed(*pair) for data, pair in names[name].items()} for part, names in PAPER[table].items()
        }
        yield _row(name, against=OURS, **scores)


def _vary(setting: str, values: Iterable[int]) -> tuple[Row, ...]:
    return tuple(
        Row(f"{model}, {setting} {value}", model, {setting: value}, at=value)
        for model in (OURS, "mnagt-paper")
        for value in values
    )


def _sensitivity(title: str, name: str, axis: str, rows: tuple[Row, ...]) -> Experiment:
    about = "All else as in the recipes. The paper has a figure without numbers, and says that accuracy "
    return Experiment(title, about + PAPER["sensitivity"][name] + ".", "sensitivity", rows, TU, axis=axis)


EXPERIMENTS: dict[str, Experiment] = {
    "table1": Experiment(
        "Table 1: accuracy",
        "The eleven rows of the paper's table, trained by us on equal splits, and two beside them: our default, and "
        "GIN, which the paper leaves out.",
        "scores",
        (*_read_rows("table1"), _row("GIN", against=OURS), DEFAULT),
        TU,
    ),
    "table2": Experiment(
        "Table 2: OGB's data sets",
        "The rows of the paper's table and our default, on the official splits: average precision on ogbg-molpcba, F1 "
        "on ogbg-code2.",
        "scores",
        (*_read_rows("table2"), DEFAULT),
        OGB,
        seeds=5,
    ),
    "baselines": Experiment(
        "Baselines that the paper leaves out",
        "GIN, and a linear model over WL subtree counts, which has no layers, on the data sets and splits of table 1.",
        "scores",
        (_row("MNA-GT", against=OURS), _row("GIN", against=OURS), COUNTS, DEFAULT),
        TU,
    ),
    "ablation": Experiment(
        "How a node merges its kernels",
        "The adaptive mixer (eqs. 9 and 10) against plain ways to merge what the kernels brought.",
        "ablation",
        tuple(
            Row(
                f"{model}, {mixer}",
                model,
                {"mixer": mixer},
                against=None if mixer == "adaptive" else f"{model}, adaptive",
                at=mixer,
                test={"COLLAB": Printed(accuracy)} if model == "mnagt-paper" else {},
            )
            for model in (OURS, "mnagt-paper")
            for mixer, accuracy in PAPER["ablation"].items()
        ),
        ("COLLAB",),
    ),
    "attribution": Experiment(
        "What each part is worth",
        "The default model by its recipes, and the same with one part left out, or added, all through training. A part "
        "that a recipe does not have makes no difference there.",
        "scores",
        (
            DEFAULT,
            *(
                Row(f"{OURS} {change}", OURS, settings, against=OURS)
                for change, settings in {
                    "without attention": {"attention": "none"},
                    "without kernels beyond the first": {"max_hop": 0},
                    "without message passing": {"conv": "none"},
                    "without WL features": {"wl_iterations": 0},
                    "without WL features and attention": {"wl_iterations": 0, "attention": "none"},
                    "without a forest": {"forest_trees": 0},
                    "without spectral neighbourhoods": {"eigenpairs": 0},
                    "without a gate": {"gate": False},
                    "with spectral neighbourhoods and gate": {"eigenpairs": 16, "gate": True},
                }.items()
            ),
            Row("counts", "counts", against=OURS),
            Row("wl-linear", "wl-linear", against=OURS),
        ),
        (*TU, "ogbg-molhiv", "pypi_ast"),
    ),
    "hops": _sensitivity("How far kernels look", "hops", "k, propagation steps", _vary("max_hop", range(1, 6))),
    "heads": _sensitivity("Heads of a kernel", "heads", "m, heads", _vary("heads", (2, 3, 4, 6, 8))),
    "layers": _sensitivity("Layers", "layers", "L, layers", _vary("depth", range(1, 6))),
    "parameters": Experiment(
        "Numbers of parameters",
        "Counted, not trained: the models of the recipes, built for each data set. The paper does not say which GNN it "
        "counts; its figure stands beside GCN.",
        "parameters",
        (
            *(_row(name, count=PAPER["parameters"].get("GNN" if name == "GCN" else name, {})) for name in MODEL_OF),
            DEFAULT,
        ),
        (*TU, *OGB),
    ),
}


# --- trials ---

PROTOCOLS: dict[Protocol, str] = {
    "redrawn": "every trial draws weights and a random 8:1:1 split of its own, as the paper does",
    "folds": "stratified 10-fold cross-validation; in each fold validation chooses among three learning rates (a "
    "third, one and three times the recipe's), and only its choice is counted",
    "fixed": "one random 8:1:1 split for all trials, which differ in their weights",
}
RATES, QUICK_EPOCHS = (1 / 3, 1.0, 3.0), 3


def recipe(dataset: str, model: str) -> RunConfig:
    """The shipped recipe of a model on a data set.

    A model without one there is trained as the default model is, in its own default size; a data set without any, as
    NCI1 is.
    """
    name = Path(dataset).stem
    if shipped := shipped_recipe(name, model):
        return replace(shipped, dataset=dataset)
    if default := shipped_recipe(name, OURS):
        return replace(default, dataset=dataset, model=model, settings={})
    return replace(read_recipe(f"nci1/{model}"), dataset=dataset)


def list_trials(row: Row, dataset: str, experiment: Experiment, config: ReproduceConfig) -> list[list[RunConfig]]:
    """The trials of a row on a data set: for each repeat one, or several of which validation is to choose."""
    base = recipe(dataset, row.model)
    base = replace(base, settings={**base.settings, **row.settings})
    if config.is_quick:
        base = replace(base, train=replace(base.train, epochs=QUICK_EPOCHS))
    return [_repeat(base, config, i) for i in config.repeats(experiment.seeds)]


def _repeat(base: RunConfig, config: ReproduceConfig, i: int) -> list[RunConfig]:
    first, seed = config.first_seed, config.first_seed + i
    weights = replace(base, train=replace(base.train, seed=seed))
    if resolve_split_kind(base).split.kind not in ("auto", "random"):  # a split that comes with the data
        return [weights]
    match config.protocol:
        case "redrawn":
            return [with_seed(base, seed)]
        case "fixed":
            return [replace(weights, split=replace(base.split, seed=first))]
        case "folds":
            fold = replace(weights, split=SplitConfig("stratified", seed=first, folds=FOLDS, fold=i))
            return [replace(fold, train=replace(fold.train, lr=fold.train.lr * rate)) for rate in RATES]


def select_cells(experiment: Experiment, config: ReproduceConfig) -> list[tuple[Row, str]]:
    """Pairs of row and data set, without those that ``config`` leaves out."""
    datasets = config.datasets or experiment.datasets
    cells = [(row, dataset) for dataset in datasets for row in experiment.rows]
    if not config.only:
        return cells
    selected = {cell for pattern in config.only for cell in _match_cells(pattern, cells)}
    return [cell for cell in cells if (cell[0].name, cell[1]) in selected]


def _match_cells(pattern: str, cells: list[tuple[Row, str]]) -> set[tuple[str, str]]:
    """Name of row and data set of the cells that ``pattern`` fits by the name of the row or else by its model."""
    for kind in ("name", "model"):
        fitting = {
            (row.name, dataset) for row, dataset in cells if fnmatchcase(f"{getattr(row, kind)}/{dataset}", pattern)
        }
        if fitting:
            return fitting
    names = dict.fromkeys(f"{row.model}/{dataset}" for row, dataset in cells)
    raise InputError(f"--only {pattern}: no such MODEL/DATASET or ROW/DATASET; there are: {', '.join(names)}")
