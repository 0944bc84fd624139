"""What a request asks about, and the graphs made of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictBool, StrictInt, StrictStr
from torch import Tensor

from mnagt.data.code_layout import graphs_of
from mnagt.data.code_trees import Function, UnparsableError, functions
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import FEATURES, molecules
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.serve.config import ServeConfig
from mnagt.tasks import UNKNOWN, SubTokens, Unasked
from mnagt.training.model_folder import Trained

Number = Annotated[StrictInt, Field(ge=-1, lt=2**31)]
Label = Number | StrictStr


class Graph(BaseModel):
    """A graph: how many nodes, the edges between them, and a row of columns for each node and edge."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"nodes": 3, "edges": [[0, 1], [1, 2]]}})

    nodes: Annotated[StrictInt, Field(ge=1, lt=2**31, description="how many; they count from 0")]
    edges: list[tuple[Number, Number]] = Field(default_factory=list, description="from and to")
    directed: StrictBool = Field(default=False, description="edges run one way; otherwise each runs both ways")
    node_labels: list[list[Label]] | None = Field(
        default=None, description="categories, by number (-1 is none) or name"
    )
    node_values: list[list[FiniteFloat]] | None = None
    edge_labels: list[list[Label]] | None = None
    edge_values: list[list[FiniteFloat]] | None = None


class Ask(BaseModel):
    """Exactly one of ``smiles``, ``graphs`` and ``code``."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"smiles": ["CC(=O)Oc1ccccc1C(=O)O"]}}, allow_inf_nan=False
    )

    smiles: list[StrictStr] | None = Field(default=None, description="molecules, for a model that reads them")
    graphs: list[Graph] | None = None
    code: StrictStr | None = Field(default=None, description="Python source, for a model that names functions")
    level: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="of a calibrated model: also sets or intervals that hold the truth in this share of cases",
    )


class AskOne(Ask):
    """One molecule, graph or function (of several in ``code``, the one numbered ``which``)."""

    which: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    target: StrictStr | None = Field(
        default=None, description="the class, question or number to explain [what is said]"
    )


@dataclass(frozen=True, eq=False)
class Asked:
    """Graphs in the categories of the model, and the functions that they are of, if any."""

    graphs: PackedDataset
    functions: Sequence[Function] = ()


def kinds(trained: Trained) -> tuple[str, ...]:
    """What the model can be asked about."""
    can = {"smiles": trained.model.features == FEATURES, "code": _words(trained) is not None, "graphs": True}
    return tuple(kind for kind, does in can.items() if does)


def read(ask: Ask, trained: Trained, limits: ServeConfig) -> Asked:
    """The graphs of a request, or an ``InputError`` that names the field at fault."""
    given = [kind for kind in ("smiles", "graphs", "code") if getattr(ask, kind) is not None]
    if len(given) != 1:
        raise InputError(f"give one of {', '.join(kinds(trained))}, got {' and '.join(given) or 'none'}")
    (kind,) = given
    if kind not in kinds(trained):
        raise InputError(f"{kind}: this model does not read it; it reads {' and '.join(kinds(trained))}")
    asked = _READERS[kind](getattr(ask, kind), trained, limits)
    edges = int(asked.graphs.edge_ptr[-1])
    for what, count, most in (
        ("graphs", len(asked.graphs), limits.max_graphs),
        ("nodes", int(asked.graphs.node_ptr[-1]), limits.max_nodes),
        ("nodes in one graph", int(asked.graphs.sizes.max()), limits.largest),
        ("edges", edges, limits.max_edges),
    ):
        if count > most:
            raise InputError(f"{kind}: {count:,} {what}, at most {most:,} are allowed; ask about fewer at once")
    return Asked(trained.aligned(asked.graphs), asked.functions)


def _of_smiles(smiles: list[str], trained: Trained, limits: ServeConfig) -> Asked:
    _count("smiles", len(smiles), limits)
    for row, text in enumerate(smiles):
        if len(text) > limits.max_text:
            raise InputError(f"smiles[{row}]: {len(text):,} characters, at most {limits.max_text:,} are allowed")
    found = molecules(smiles, name="smiles", workers=1)
    if found.refused:
        raise InputError(f"smiles[{found.refused[0].row}]: {found.refused[0].reason}")
    return Asked(found.graphs)


def _of_code(code: str, trained: Trained, limits: ServeConfig) -> Asked:
    try:
        found = functions(code.encode(errors="backslashreplace"), limits.largest, limits.max_graphs + 1)
    except UnparsableError as error:
        where = "" if error.line is None else f", line {error.line}"
        raise InputError(f"code{where}: {error}; it is not Python") from None
    _count("code", len(found), limits, "functions")
    words = _words(trained)
    assert words is not None
    return Asked(graphs_of(found, *words, name="code"), found)


def _of_graphs(graphs: list[Graph], trained: Trained, limits: ServeConfig) -> Asked:
    _count("graphs", len(graphs), limits)
    for what, count, most in (
        ("nodes", sum(graph.nodes for graph in graphs), limits.max_nodes),
        ("edges", sum(len(graph.edges) for graph in graphs), limits.max_edges),
    ):
        if count > most:
            raise InputError(f"graphs: {count:,} {what}, at most {most:,} are allowed; ask about fewer at once")
    ends, columns, first = [], {name: [] for name in _columns(trained)}, 0
    for place, graph in enumerate(graphs):
        here = f"graphs[{place}]"
        pairs = np.array(graph.edges, np.int64).reshape(-1, 2)
        if len(pairs) and not (0 <= pairs.min() and pairs.max() < graph.nodes):
            raise InputError(f"{here}.edges: nodes are 0 to {graph.nodes - 1}, got {pairs.min()} to {pairs.max()}")
        if len(np.unique(pairs[:, 0] << 32 | pairs[:, 1])) < len(pairs):
            raise InputError(f"{here}.edges: the same edge is there twice; leave it out")
        row = np.flatnonzero(pairs[:, 0] != pairs[:, 1])  # no self loops, as in files
        key, back = (pairs[row, a] << 32 | pairs[row, b] for a, b in ((0, 1), (1, 0)))
        other_way = row[:0] if graph.directed else row[~np.isin(back, key)]
        ends.append(np.concatenate([pairs[row], pairs[other_way, ::-1]]) + first)
        row = np.concatenate([row, other_way])
        first += graph.nodes
        for name in ("node_labels", "node_values", "edge_labels", "edge_values"):
            table = _table(f"{here}.{name}", name, graph, trained)
            if table is not None:
                columns[name].append(table[row] if name.startswith("edge") else table)
    batch = GraphBatch.from_edges(
        torch.from_numpy(np.concatenate(ends).T.copy()),
        [graph.nodes for graph in graphs],
        targets=torch.zeros(len(graphs), 0),
        **{name: torch.from_numpy(np.concatenate(tables)) for name, tables in columns.items()},
    )
    counts = {f"{kind}_labels": c.labels for kind, c in _kinds(trained) if c.labels}
    return Asked(PackedDataset.from_batch("graphs", Unasked(), batch, label_counts=counts))


_READERS = {"smiles": _of_smiles, "graphs": _of_graphs, "code": _of_code}


def _count(kind: str, count: int, limits: ServeConfig, what: str = "entries") -> None:
    if not 1 <= count <= limits.max_graphs:
        raise InputError(f"{kind}: 1 to {limits.max_graphs:,} {what} are allowed, got {count:,}")


def _words(trained: Trained) -> tuple[Sequence[str], Sequence[str]] | None:
    """The types and attributes of syntax trees that the model knows, if it names functions."""
    types, attributes = (trained.vocabularies.get(f"node_labels/{column}", ()) for column in (0, 1))
    if isinstance(trained.task, SubTokens) and UNKNOWN in types and UNKNOWN in attributes:
        return types, attributes
    return None


def _kinds(trained: Trained) -> list[tuple[str, Any]]:
    return [("node", trained.model.features.nodes), ("edge", trained.model.features.edges)]


def _columns(trained: Trained) -> dict[str, int]:
    """The tables that the model reads, and how many columns each has."""
    wide = {
        f"{kind}_{what}": n
        for kind, c in _kinds(trained)
        for what, n in (("labels", len(c.labels)), ("values", c.values))
    }
    return {name: count for name, count in wide.items() if count}


def _table(where: str, name: str, graph: Graph, trained: Trained) -> np.ndarray | None:
    """One row of columns for each node or edge, categories as the model counts them."""
    given, wide = getattr(graph, name), _columns(trained).get(name, 0)
    rows, what = (graph.nodes, "node") if name.startswith("node") else (len(graph.edges), "edge")
    if given is None and (not wide or not rows):
        return np.zeros((0, wide), np.int64 if name.endswith("labels") else np.float32) if wide else None
    if given is None:
        raise InputError(f"{where}: missing; the model reads {wide} of each {what}")
    if not wide:
        raise InputError(f"{where}: the model reads none; leave it out")
    if len(given) != rows:
        raise InputError(f"{where}: {len(given)} rows for {rows} {what}s; give one row a {what}")
    for place, row in enumerate(given):
        if len(row) != wide:
            raise InputError(f"{where}[{place}]: {len(row)} columns, and the model reads {wide}")
    if name.endswith("values"):
        values = np.array(given, np.float64).reshape(rows, wide)
        if not (np.abs(values) <= np.finfo(np.float32).max).all():
            raise InputError(f"{where}: a number is too large; the model counts in 32 bits")
        return values.astype(np.float32)
    counts = getattr(trained.model.features, f"{what}s").labels
    known = [{word: i for i, word in enumerate(trained.vocabularies.get(f"{name}/{i}", ()))} for i in range(wide)]
    numbers = np.empty((rows, wide), np.int64)
    for place, row in enumerate(given):
        for column, label in enumerate(row):
            number = known[column].get(label) if isinstance(label, str) else label
            if number is None or not number < counts[column]:
                raise InputError(
                    f"{where}[{place}][{column}]: {label!r:.60} is no category of the model; it knows "
                    f"0 to {counts[column] - 1}"
                    + (f" ({', '.join(list(known[column])[:12])})" if known[column] else "")
                )
            numbers[place, column] = number
    return numbers


def joined(parts: Sequence[PackedDataset]) -> PackedDataset:
    """The graphs of all, in that order. Their columns are of the same kinds."""
    first, *others = parts
    if not others:
        return first

    def end_to_end(name: str) -> Tensor | None:
        return None if getattr(first, name) is None else torch.cat([getattr(part, name) for part in parts])

    def pointer(name: str) -> Tensor:
        return torch.cat([torch.zeros(1, dtype=torch.long), *(getattr(p, name).diff() for p in parts)]).cumsum(0)

    columns: dict[str, Any] = {
        name: end_to_end(name) for name in ("node_labels", "node_values", "edge_labels", "edge_values")
    }
    return PackedDataset(
        name="these graphs",
        task=first.task,
        node_ptr=pointer("node_ptr"),
        edge_ptr=pointer("edge_ptr"),
        source=torch.cat([part.source for part in parts]),
        in_degree=torch.cat([part.in_degree for part in parts]),
        targets=torch.cat([part.targets for part in parts]),
        is_symmetric=all(part.is_symmetric for part in parts),
        label_counts=first.label_counts,
        vocabularies=first.vocabularies,
        **columns,
    )
