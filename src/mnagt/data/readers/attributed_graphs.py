"""Graphs whose nodes, edges and graphs have attributes by name, as files and networkx give them, and their data set.

Graphs are undirected unless they say otherwise: an edge then runs both ways.
"""

import logging
from bisect import bisect_right
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.attribute_columns import AttributeColumns, category_name, encode_columns, pack_keys
from mnagt.data.readers.edges import add_reverse_edges, reverse_keys
from mnagt.data.readers.split_columns import SplitColumn, encode_split_column
from mnagt.data.readers.text_table import Table, read_targets
from mnagt.errors import InputError, quote
from mnagt.tasks import Task

TARGET = "y"
"""The attribute of graphs that is the target where no other is named."""

_MAX_LOGGED = 10
"""Graphs left out that the log names one by one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class GraphTable(Table):
    """The attributes of graphs, as texts; ``locations`` says where each graph is, for messages."""

    locations: Sequence[str] = ()

    def locate(self, row: int, column: str | None = None) -> str:
        return self.locations[row] + ("" if column is None else f", {quote(column)}")

    @classmethod
    def from_rows(cls, label: str, rows: Sequence[Mapping[str, Any]], locations: Sequence[str]) -> "GraphTable":
        """A row for each graph; a list becomes several columns: y/0, y/1, ..."""
        columns = AttributeColumns("graphs", label, lambda row, name: f"{locations[row]}, {quote(name)}")
        for row in rows:
            cells: dict[str, Any] = {}
            for name, value in row.items():
                is_list = isinstance(value, list | tuple)
                cells |= {f"{name}/{i}": entry for i, entry in enumerate(value)} if is_list else {name: value}
            columns.add(row if isinstance(row, ChainMap) else cells)  # with defaults: a file without lists
        for name, column in columns.values.items():
            for row, value in enumerate(column):
                if not isinstance(value, str | int | float | None):
                    raise columns.type_error(row, name, "a text, a number or a list of them", value)
        texts = {
            name: ["" if value is None else category_name(value) for value in column]
            for name, column in columns.values.items()
        }
        return cls(label, texts, range(len(rows)), locations=locations)

    def find_targets(self, names: Sequence[str] | None, group: str | None) -> tuple[str, ...]:
        """The target columns: ``names``, with all columns of a list; else ``TARGET``, or the only one besides group."""
        if names is None:
            return self._list_columns(TARGET) or self.find_target_columns(None, [group or ""])
        listed = [each for name in names for each in self._list_columns(name) or (name,)]
        return self.find_target_columns(listed, [group or ""])

    def _list_columns(self, name: str) -> tuple[str, ...]:
        return tuple(
            c for c in self.columns if c == name or (c.startswith(f"{name}/") and c[len(name) + 1 :].isdigit())
        )


@dataclass(eq=False)
class AttributedGraphs:
    """Graphs end to end; nodes are numbered over all of them."""

    name: str
    label: str
    """The source, for messages."""
    nodes: AttributeColumns
    edges: AttributeColumns
    node_ends: list[int] = field(default_factory=list)
    """One more than the last node of each graph."""
    edge_ends: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Source and destination of each edge."""
    is_directed: list[bool] = field(default_factory=list)
    """Whether an edge runs one way only."""
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """The attributes of each graph."""
    locations: list[str] = field(default_factory=list)
    """Where each graph is, for messages."""
    row_locations: dict[str, list[str]] = field(default_factory=lambda: {"nodes": [], "edges": []})
    """Where each node and edge is, if that is not found by its graph and its index."""
    ids: list[str | int] = field(default_factory=list)
    """The id of each graph; its number, if it has none."""

    @classmethod
    def empty(cls, name: str, label: str, describe: Callable[[str, str], str]) -> "AttributedGraphs":
        """No graphs yet. ``describe`` says where an attribute is, from the location of its row and its name."""

        def locate(kind: str, row: int, attribute: str) -> str:
            return describe(graphs._locate_row(kind, row), attribute)

        nodes, edges = (AttributeColumns(kind, label, partial(locate, kind)) for kind in ("nodes", "edges"))
        graphs = cls(name, label, nodes, edges)
        return graphs

    def _locate_row(self, kind: str, row: int) -> str:
        """Where a node or edge is: as it was added, or else by its index in its graph."""
        if self.row_locations[kind]:
            return self.row_locations[kind][row]
        ends = self.node_ends if kind == "nodes" else self.edge_ends
        graph = bisect_right(ends, row)
        return f"{self.locations[graph]}, {kind}[{row - (ends[graph - 1] if graph else 0)}]"

    @property
    def first_node(self) -> int:
        """The number of the first node of the graph that is being added."""
        return self.node_ends[-1] if self.node_ends else 0

    def add_node(self, attributes: Mapping[str, Any], location: str) -> None:
        """Add a node; all have a ``location``, or none (``nodes.add``)."""
        self.nodes.add(attributes)
        self.row_locations["nodes"].append(location)

    def add_edge(
        self, ends: tuple[int, int], attributes: Mapping[str, Any], location: str | None = None, *, is_directed: bool
    ) -> None:
        """Add an edge between two nodes, numbered over all graphs."""
        self.ends.append(ends)
        self.is_directed.append(is_directed)
        self.edges.add(attributes)
        if location is not None:
            self.row_locations["edges"].append(location)

    def end_graph(self, attributes: Mapping[str, Any], location: str, graph_id: str | int) -> None:
        """Make a graph of the nodes and edges added since the last one."""
        self.node_ends.append(self.nodes.rows)
        self.edge_ends.append(len(self.ends))
        self.rows.append(attributes)
        self.locations.append(location)
        self.ids.append(graph_id)

    @cached_property
    def table(self) -> GraphTable:
        """The attributes of all graphs, once they are added."""
        return GraphTable.from_rows(self.label, self.rows, self.locations)

    def pack(
        self,
        *,
        targets: Sequence[str] | None = None,
        task: str | Task = "auto",
        group: str | SplitColumn | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        is_continued: bool = False,
    ) -> PackedDataset:
        """The data set of these graphs, without those that have no target.

        Args:
            targets: names of the target columns of the graphs.
            task: as for ``read_molecules``.
            group: the column of graphs that a split reads; see ``load_dataset``.
            columns: the columns to read, by kind ('node_labels', ...): those of a model. None to find out.
            is_continued: ``columns`` are those of earlier graphs of the same file; see ``encode_columns``.
        """
        table = self.table
        if not self.node_ends:
            raise InputError(f"{table.label}: no graphs in it; give at least one")
        targets = targets if isinstance(task, str) else task.target_columns(targets)
        group = SplitColumn(group) if isinstance(group, str) else group
        names = table.find_targets(targets, group and group.name)
        task, target, has_target = read_targets(table, names, task)
        nodes, edges = (
            encode_columns(table.label, each, columns, is_continued=is_continued) for each in (self.nodes, self.edges)
        )
        ends = np.array(self.ends, np.int64).reshape(-1, 2)
        keys, row = add_reverse_edges(table.label, ends, np.array(self.is_directed, bool))
        dataset = pack_keys(
            self.name,
            np.diff(self.node_ends, prepend=0),
            keys,
            nodes,
            edges.select(row),
            task=task,
            targets=target,
            is_symmetric=np.array_equal(keys, np.sort(reverse_keys(keys))),
            **({} if group is None else encode_split_column(table, group)),
        )
        if not has_target.all():
            message = _describe_unlabelled(table, has_target)
            _log.warning("%s", message)
            if not has_target.any():
                raise InputError(f"{message}; nothing is left")
            dataset = dataset.select(torch.from_numpy(np.flatnonzero(has_target)))
        return dataset


def _describe_unlabelled(table: GraphTable, has_target: Bool[np.ndarray, "graphs"]) -> str:
    rows = np.flatnonzero(~has_target).tolist()
    graphs = [table.locations[row] for row in rows[:_MAX_LOGGED]] + ["..."] * (len(rows) > _MAX_LOGGED)
    count = f"{len(rows):,} of {len(has_target):,} graphs"
    return f"{table.label}: {count} have no target and are left out: {'; '.join(graphs)}"
