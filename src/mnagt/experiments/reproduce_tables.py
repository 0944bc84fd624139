"""The paper's tables and figures as experiments: rows, data sets and seeds. To add one: an entry of EXPERIMENTS."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
