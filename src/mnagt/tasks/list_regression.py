"""Several numbers for each node or edge of a graph: partial charges of atoms, lengths of bonds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks.base import Level, ScoreGroups, Task
from mnagt.tasks.explained_output import ExplainedOutput
from mnagt.tasks.regression import Regression
from mnagt.tasks.target_column import MISSING, TargetColumn, parse_number

Cells = Float[Tensor, "graphs cells"]
"""The numbers of all items (nodes, edges) of a graph end to end, those of an item side by side; NaN after the last."""
Targets = Float[Tensor, "graphs target_cells"]
"""The same of targets, whose largest graph may be another."""

_LIST = re.compile(r"\[(.*)\]|\((.*)\)|(.*)", re.DOTALL)


class ListRegression(Regression):
    """Several numbers for each item, some missing (NaN). Scores are those of ``Regression``, over all items."""

    thresholds_per_output: ClassVar[int] = 0
    link: ClassVar[Literal["identity", "logit", "log"] | None] = None
    expected_cell: ClassVar[str] = "a list of numbers"

    @property
    def column_kind(self) -> Literal["number", "label"] | None:
        return None

    def split_items(self, cells: Float[Tensor, "*any cells"]) -> Float[Tensor, "*any items columns"]:
        """The cells of each graph with a row for each item."""
        columns = len(self.names)
        return cells.reshape(*cells.shape[:-1], cells.shape[-1] // columns, columns)

    def _list_items(self, cells: Cells) -> Float[Tensor, "items columns"]:
        return cells.reshape(-1, len(self.names))

    def _align(
        self, output: Float[Tensor, "*any graphs cells"], target: Float[Tensor, "*any graphs target_cells"]
    ) -> tuple[Float[Tensor, "*any items columns"], Float[Tensor, "*any items columns"]]:
        """Rows for the items of all graphs. Outputs without a target are 0, so that they pass on no gradient."""
        width = max(output.shape[-1], target.shape[-1])
        padded = (F.pad(each, (0, width - each.shape[-1]), value=torch.nan) for each in (output, target))
        output, target = (self.split_items(each).flatten(-3, -2) for each in padded)
        return output.where(target.isfinite(), 0.0), target

    def fit(self, target: Targets) -> Regression:
        return super().fit(self._list_items(target))

    def describe_targets(self, target: Targets) -> str:
        return super().describe_targets(self._list_items(target))

    def find_outliers(self, target: Targets) -> Tensor:
        """None: numbers of different elements lie far apart."""
        return Task.find_outliers(self, target)

    def comparable_targets(self, target: Targets) -> Targets:
        """Each column sorted."""
        return self.split_items(target).sort(dim=-2).values.flatten(-2)

    def merge_targets(self, target: Targets, group: Tensor) -> NoReturn:
        raise InputError(
            f"copies of a molecule may list its {self.level}s in different orders, and the task is {self.kind}; keep "
            "or drop duplicates"
        )

    def loss(self, output: Cells, target: Targets) -> Float[Tensor, ""]:
        return super().loss(*self._align(output, target))

    def loss_weight(self, target: Targets) -> Float[Tensor, ""]:
        return super().loss_weight(self._list_items(target))

    def compute_metrics(
        self, output: Float[Tensor, "*resamples graphs cells"], target: Float[Tensor, "*resamples graphs target_cells"]
    ) -> dict[str, Tensor]:
        return super().compute_metrics(*self._align(output, target))

    def is_finite(self, output: Cells) -> bool:
        """Whether rows have finite numbers, and after them NaN only; a model marks NaN among them as infinite."""
        is_nan = output.isnan()
        return not (output.isinf().any() or (is_nan[:, :-1] & ~is_nan[:, 1:]).any())

    def decode(self, output: Cells) -> dict[str, list]:
        """A list for each graph, of a number for each item."""
        sizes = (~self.split_items(output)[..., 0].isnan()).sum(dim=1).tolist()
        values = self.to_units(self.split_items(output))
        return {
            name: [row[:size] for row, size in zip(values[..., i].tolist(), sizes, strict=True)]
            for i, name in enumerate(self.names)
        }

    def convert_output(self, output: Cells, source: Task) -> Cells:
        converted = super().convert_output(self._list_items(output), source).reshape(output.shape)
        return converted.where(~output.isnan(), torch.nan)

    # What is for one number of each graph

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{what} for one value of each graph, and the task is {self.kind}, with one for each {self.level}"
        )

    def target_probability(self, target: Targets) -> NoReturn:
        self._refuse("random forests are")

    def from_predicted_columns(self, predicted: Tensor) -> NoReturn:
        self._refuse("columns of other programs are")

    def conformal_scores(self, output: Cells, target: Targets) -> ScoreGroups:
        self._refuse("calibration and intervals are")

    def prediction_sets(self, output: Cells, thresholds: Tensor, level: float) -> NoReturn:
        self._refuse("calibration and intervals are")

    def interval_coverage(self, output: Cells, target: Targets, thresholds: Tensor) -> dict:
        return {}

    def explained_outputs(
        self, output: Cells, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        self._refuse("explanations are")

    # Targets from tables

    def parse_targets(self, columns: Sequence[TargetColumn]) -> Cells:
        parsed = [self._parse_lists(column) for column in columns]
        width = max((len(values) for lists in parsed for values in lists), default=0)
        target = torch.full((len(parsed[0]), width, len(parsed)), torch.nan)
        for i, lists in enumerate(parsed):
            for row, values in enumerate(lists):
                target[row, : len(values), i] = torch.tensor(values)
        return target.flatten(1)

    def parse_list_targets(self, columns: Sequence[TargetColumn], sizes: Sequence[int], items: str) -> Cells:
        for column in columns:
            for row, (values, size) in enumerate(zip(self._parse_lists(column), sizes, strict=True)):
                if column.texts[row] and len(values) != size:
                    hint = " (without hydrogens, as RDKit reads the SMILES)" if items in ("atoms", "bonds") else ""
                    raise InputError(
                        f"{column.locate(row)}: {len(values)} values for {size} {items}{hint}; give one for each, in "
                        f"their order, and null where it is missing"
                    )
        return self.parse_targets(columns)

    def _parse_lists(self, column: TargetColumn) -> list[list[float]]:
        return column.parse(parse_list, [], f"neither {self.expected_cell} ([0.1, -0.2]) nor empty; fix it")


@dataclass(frozen=True)
class NodeRegression(ListRegression):
    """Several numbers for each node.

    >>> task = NodeRegression(("charge",), mean=(1.0,), std=(2.0,))
    >>> task.decode(torch.tensor([[0.5, -0.5], [0.0, torch.nan]]))  # graphs of two nodes and of one
    {'charge': [[2.0, 0.0], [1.0]]}
    """

    kind: ClassVar[str] = "node-regression"
    level: ClassVar[Level] = "node"


@dataclass(frozen=True)
class EdgeRegression(ListRegression):
    """Several numbers for each edge, both of its directions as one.

    >>> task = EdgeRegression(("length",), mean=(1.4,), std=(0.1,))
    >>> task.decode(torch.tensor([[1.0], [torch.nan]]))  # graphs of one edge and of none
    {'length': [[1.5], []]}
    """

    kind: ClassVar[str] = "edge-regression"
    level: ClassVar[Level] = "edge"


def parse_list(text: str) -> list[float] | None:
    """The numbers of a list with commas, semicolons or spaces between them, NaN where one is missing; else None.

    >>> parse_list("[0.5, null]"), parse_list("0.5;-1"), parse_list("C")
    ([0.5, nan], [0.5, -1.0], None)
    """
    inner = next(part for part in _LIST.fullmatch(text.strip()).groups() if part is not None)  # type: ignore[union-attr]
    separator = next((each for each in ",;" if each in inner), None)
    cells = [cell.strip() for cell in inner.split(separator)] if inner.strip() else []
    numbers = [float("nan") if _is_missing(cell) else parse_number(cell) for cell in cells]
    return None if None in numbers else [number for number in numbers if number is not None]


def _is_missing(cell: str) -> bool:
    return cell.lower() in (*MISSING, "none")
