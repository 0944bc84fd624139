r"""How graphs differ from training graphs as a whole: bins of sizes, categories and distances, and their drift.

The population stability index (PSI) of a feature is the symmetrised Kullback-Leibler divergence of its bins:

.. math:: \mathrm{PSI} = \sum_b (p_b - q_b) \ln (p_b / q_b)

Without drift it is about :math:`(1/n + 1/m)\,\chi^2` for n and m graphs, with one degree of freedom less than bins.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.settings import from_dict

QUANTILES = tuple(i / 10 for i in range(1, 10))
MAX_CATEGORIES = 20
"""The most common categories of a column have bins of their own; all others share one."""
DRIFT_PSI = 0.2
"""A PSI above this is a shift that matters, by convention; it must also be above what chance gives."""
CHANCE = 0.01
"""How often a PSI without drift is above what is given as the largest by chance."""

BinCounts = Mapping[str, Float[Tensor, "bins"]]
"""Graphs in each bin, by feature."""


@dataclass(frozen=True)
class Bins:
    """The bins of a feature, and how many training graphs (for distances: validation graphs) fall into each.

    A graph of which half the nodes have a category counts as half a graph in its bin.
    """

    counts: tuple[float, ...]
    edges: tuple[float, ...] = ()
    """Where one bin of numbers ends and the next begins."""
    categories: tuple[int, ...] = ()
    """The categories with bins of their own; the last bin is for all others."""

    def describe(self, names: Sequence[str] = ()) -> list[str]:
        """What each bin holds.

        >>> Bins((1, 1), edges=(2.0,)).describe(), Bins((1, 1), categories=(0,)).describe(["C", "N"])
        (['up to 2', 'over 2'], ['C', 'others'])
        """
        if not self.edges:
            return [names[each] if each < len(names) else str(each) for each in self.categories] + ["others"]
        return [*(f"up to {edge:.4g}" for edge in self.edges), f"over {self.edges[-1]:.4g}"]


@dataclass(frozen=True)
class Drift:
    """The drift of a feature."""

    psi: float
    by_chance: float
    """What the PSI stays below in 99 of 100 cases without drift."""

    @property
    def is_significant(self) -> bool:
        return self.psi > max(DRIFT_PSI, self.by_chance)


def fit_bins(graph: GraphBatch, distances: Float[Tensor, "validation_graphs"]) -> dict[str, Bins]:
    """Bins of the features of training graphs, and of the distances of validation graphs."""
    numbers, bins = {**_list_numbers(graph), "distance": distances.double()}, {}
    for name, values in numbers.items():
        edges = tuple(values.quantile(torch.tensor(QUANTILES).double()).unique().tolist())
        bins[name] = Bins(tuple(_count_numbers(values, edges).tolist()), edges)
    for name, labels in _list_labels(graph).items():
        counts = labels[labels >= 0].bincount()
        order = counts.argsort(descending=True, stable=True)[:MAX_CATEGORIES]
        categories = tuple(order[counts[order] > 0].tolist())
        bins[name] = Bins(tuple(_count_labels(graph, name, labels, categories).tolist()), categories=categories)
    return bins


def count_bins(
    bins: Mapping[str, Bins], graph: GraphBatch, distances: Float[Tensor, "graphs"]
) -> dict[str, Float[Tensor, "bins"]]:
    """How many of these graphs fall into each bin."""
    numbers, labels = {**_list_numbers(graph), "distance": distances.double()}, _list_labels(graph)
    counted = {}
    for name, each in bins.items():
        if name in numbers:
            counted[name] = _count_numbers(numbers[name], each.edges)
        elif name in labels:
            counted[name] = _count_labels(graph, name, labels[name], each.categories)
    return counted


def measure_drift(bins: Mapping[str, Bins], counts: BinCounts) -> dict[str, Drift]:
    """The drift of each feature of which any graph was counted."""
    from scipy.special import chdtri  # the value that chi-square is above with a given probability

    drifts = {}
    for name, each in bins.items():
        expected, counted = torch.tensor(each.counts).double(), counts.get(name)
        if counted is None or not counted.sum() > 0:
            continue
        psi = compute_psi(expected, counted.double())
        degrees, share = len(expected) - 1, 1 / float(expected.sum()) + 1 / float(counted.sum())
        drifts[name] = Drift(psi, share * float(chdtri(degrees, CHANCE)) if degrees else 0.0)
    return drifts


def compute_psi(expected: Float[Tensor, "bins"], counts: Float[Tensor, "bins"]) -> float:
    """The population stability index; half a graph is added to each bin.

    >>> compute_psi(torch.tensor([50.0, 50.0]), torch.tensor([50.0, 50.0]))
    0.0
    >>> round(compute_psi(torch.tensor([50.0, 50.0]), torch.tensor([90.0, 10.0])), 1)
    0.9
    """
    p, q = ((each + 0.5) / (each + 0.5).sum() for each in (expected, counts))
    return float(((p - q) * (p / q).log()).sum())


def bins_to_dict(bins: Mapping[str, Bins]) -> dict[str, Any]:
    return {name: asdict(each) for name, each in bins.items()}


def bins_from_dict(content: Any, where: str) -> dict[str, Bins]:
    """What ``bins_to_dict`` gave; ``where`` names the file in messages."""
    try:
        bins = {str(name): from_dict(Bins, each, where=where) for name, each in content.items()}
        for each in bins.values():
            numbers = [*each.counts, *each.edges]
            if not all(map(math.isfinite, numbers)) or len(each.counts) != len(each.edges or each.categories) + 1:
                raise ValueError
    except (AttributeError, ValueError):  # an InputError of from_dict, too
        raise InputError(f"{where}: damaged; restore it, or delete it to go without distances") from None
    return bins


def _list_numbers(graph: GraphBatch) -> dict[str, Float[Tensor, "graphs"]]:
    edges = graph.in_ptr[graph.node_ptr.long()].diff()
    return {"nodes": graph.sizes.double().cpu(), "edges": edges.double().cpu()}


def _list_labels(graph: GraphBatch) -> dict[str, Int[Tensor, "rows"]]:
    tables = {"node_labels": graph.node_labels, "edge_labels": graph.edge_labels}
    return {
        f"{name}/{i}": column.long().cpu()
        for name, table in tables.items()
        if table is not None
        for i, column in enumerate(table.unbind(dim=1))
    }


def _count_numbers(values: Float[Tensor, "graphs"], edges: Sequence[float]) -> Float[Tensor, "bins"]:
    index = torch.bucketize(values, torch.tensor(edges).double())
    return index.bincount(minlength=len(edges) + 1).double()


def _count_labels(
    graph: GraphBatch, name: str, labels: Int[Tensor, "rows"], categories: Sequence[int]
) -> Float[Tensor, "bins"]:
    """The rows in each bin, where all rows of a graph together count as one."""
    owner = (graph.graph_of_node if name.startswith("node") else graph.graph_of_node[graph.destination]).long().cpu()
    is_category = labels[:, None] == torch.tensor(categories, dtype=torch.long)
    index = torch.where(is_category.any(dim=1), is_category.int().argmax(dim=1) if categories else 0, len(categories))
    share = 1 / owner.bincount(minlength=1)[owner].double()
    return torch.zeros(len(categories) + 1, dtype=torch.double).index_add(0, index, share)
