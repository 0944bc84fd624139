"""Bodies of requests, and the graphs in them."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StrictBool, StrictInt, StrictStr

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.code_trees import Function, UnparsableError, encode_functions, parse_functions
from mnagt.data.readers.smiles import get_smiles, read_smiles
from mnagt.errors import InputError
from mnagt.graphs.batch import EDGE_COLUMNS, NODE_COLUMNS, GraphBatch
from mnagt.graphs.molecules import MoleculeFormat, find_molecule_format
from mnagt.graphs.sparse import ptr_from_counts
from mnagt.inference.model_folder import TrainedModel
from mnagt.nn.molecule_descriptors import DESCRIPTORS
from mnagt.serve.config import MAX_ENTRIES, ServeConfig
from mnagt.tasks import Unlabelled

Number = Annotated[StrictInt, Field(ge=-1, lt=2**31)]
Label = Number | StrictStr
Item = TypeVar("Item")
FirstError = Annotated[Item, Field(fail_fast=True)]
"""A list that is validated up to its first error: the event loop waits meanwhile, and only one error is reported."""
ERROR = "error"
"""In place of the columns of a prediction, and its only column: why there is none."""
POINTERS = ("node_ptr", "edge_ptr")
TABLES = ("node_labels", "node_values", "edge_labels", "edge_values")
TEXT_PER_NODE = 8
"""Characters of all SMILES of a request, for each node that it may have."""
CODE_PER_NODE = 16
"""Characters of code, for each node that it may have; those outside of functions count too."""
ATOMS_AT_ONCE = 500
"""Atoms that are read between two checks whether the request is still waited for: some 15 ms."""

Check = Callable[[], None]
_ATOM = re.compile(r"\[(?!H\])[^\]]*\]?|Cl|Br|[BCNOPSFIbcnops*]")


def _hide_limit(schema: dict[str, Any]) -> None:
    """The schema does not say how many entries there may be: ``GET /model`` does, and fewer may be allowed."""
    del schema["maxItems"]


Entries = Annotated[list[Item], Field(fail_fast=True, max_length=MAX_ENTRIES, json_schema_extra=_hide_limit)]


class Graph(BaseModel):
    """A graph: the number of nodes, the edges, and a row of columns for each node and edge."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"nodes": 3, "edges": [[0, 1], [1, 2]]}})

    nodes: Annotated[StrictInt, Field(ge=1, lt=2**31, description="number of nodes; their indices start at 0")]
    edges: FirstError[list[tuple[Number, Number]]] = Field(default_factory=list, description="source and destination")
    directed: StrictBool = Field(default=False, description="whether edges have one direction; otherwise both")
    node_labels: FirstError[list[list[Label]]] | None = Field(
        default=None, description="categories, by index (-1 for none) or by name"
    )
    node_values: FirstError[list[list[FiniteFloat]]] | None = None
    edge_labels: FirstError[list[list[Label]]] | None = None
    edge_values: FirstError[list[list[FiniteFloat]]] | None = None


class PredictRequest(BaseModel):
    """Exactly one of ``smiles``, ``graphs`` and ``code``."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"smiles": ["CC(=O)Oc1ccccc1C(=O)O"]}}, allow_inf_nan=False
    )

    smiles: Entries[StrictStr | FirstError[list[StrictStr]]] | None = Field(
        default=None,
        description="molecules, for a model trained on molecules; lists of SMILES, for one of several components",
    )
    graphs: Entries[Graph] | None = None
    code: StrictStr | None = Field(default=None, description="Python source, for a model that names functions")
    level: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="also return sets or intervals that contain the target with this probability (calibrated models)",
    )


class ExplainRequest(PredictRequest):
    """One molecule, graph or function: the one with index ``which``."""

    which: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    target: StrictStr | None = Field(
        default=None, description="the class, label or number to explain [the predicted one]"
    )


class Predictions(BaseModel):
    """What ``/predict`` gives."""

    predictions: list[dict[str, Any]] = Field(
        description="for each entry of the request an object with the columns of mnagt predict, or for a SMILES that "
        f"cannot be read only {ERROR}: why",
        examples=[[{"prediction": "active", "p(active)": 0.93}, {ERROR: "not a SMILES"}]],
    )


def find_error(row: Mapping[str, Any]) -> str:
    """Why an entry of the request has no prediction; or nothing. A model may predict a column ``error`` too.

    >>> find_error({"error": "not a SMILES"}), find_error({"error": 0.5}), find_error({"error": "large", "logP": 1.2})
    ('not a SMILES', '', '')
    """
    return row[ERROR] if len(row) == 1 and isinstance(row.get(ERROR), str) else ""


class RequestGraphs(NamedTuple):
    """The graphs of a request, in the categories of the model, and their functions if they come from code."""

    graphs: PackedDataset
    functions: Sequence[Function] = ()
    errors: Mapping[int, str] = {}
    """Why entries of the request have no graph, by index."""

    def row(self, entry: int) -> int:
        """The index of the graph of an entry, or an ``InputError`` if it has none."""
        if entry in self.errors:
            raise InputError(f"smiles[{entry}]: {self.errors[entry]}")
        return entry - sum(index < entry for index in self.errors)


def list_input_kinds(trained: TrainedModel) -> tuple[str, ...]:
    """The fields of a request that the model can read."""
    can_read = {
        "smiles": find_molecule_format(trained.model.features) is not None,
        "code": trained.code_vocabularies is not None,
        "graphs": trained.task.level != "edge",  # only SMILES say in which order bonds are
    }
    return tuple(kind for kind, can in can_read.items() if can)


def read_request(
    request: PredictRequest, trained: TrainedModel, limits: ServeConfig, check: Check = lambda: None
) -> RequestGraphs:
    """The graphs of a request, or an ``InputError`` that names the field.

    SMILES that cannot be read are left out and named in ``errors``, unless none can. ``check`` is called every few
    molecules, and before each graph and function; what it raises ends the reading.
    """
    fields, kinds = [kind for kind in _READERS if getattr(request, kind) is not None], list_input_kinds(trained)
    if len(fields) != 1:
        raise InputError(f"give one of {', '.join(kinds)}, got {' and '.join(fields) or 'none'}")
    (kind,) = fields
    if kind not in kinds:
        raise InputError(f"{kind}: this model does not read it; it reads {' and '.join(kinds)}")
    read = _READERS[kind](getattr(request, kind), trained, limits, check)
    graphs = read.graphs
    _check_size(kind, "nodes", int(graphs.node_ptr[-1]), limits.max_nodes)
    _check_size(kind, "nodes in one graph", int(graphs.sizes.max()), find_largest_graph(trained, limits))
    _check_size(kind, "edges", int(graphs.edge_ptr[-1]), limits.max_edges)
    return read._replace(graphs=trained.align(graphs))


def find_largest_graph(trained: TrainedModel, limits: ServeConfig) -> int:
    """Most nodes of a single graph: fewer where the model has descriptors of it computed."""
    is_described = DESCRIPTORS in trained.model.encodings
    return min(limits.max_graph_nodes, limits.max_described) if is_described else limits.max_graph_nodes


def _check_size(kind: str, unit: str, count: int, limit: int) -> None:
    if count > limit:
        raise InputError(f"{kind}: {count:,} {unit}, at most {limit:,} are allowed; send fewer at once")


def _check_count(kind: str, count: int, limits: ServeConfig, unit: str = "entries") -> None:
    if not 1 <= count <= limits.max_graphs:
        raise InputError(f"{kind}: 1 to {limits.max_graphs:,} {unit} are allowed, got {count:,}")


def count_atoms(smiles: str) -> int:
    """The atoms that a SMILES writes down, without reading it. ``[H]`` is not counted: RDKit makes no node of it.

    >>> count_atoms("C[C@@H](Cl)c1ccccc1")
    9
    """
    return len(_ATOM.findall(smiles))


def _read_molecules(
    smiles: list[str | list[str]], trained: TrainedModel, limits: ServeConfig, check: Check
) -> RequestGraphs:
    _check_count("smiles", len(smiles), limits)
    row_format = find_molecule_format(trained.model.features)
    assert row_format is not None
    cells = [[row] if isinstance(row, str) else row for row in smiles]
    _check_size(
        "smiles", "characters", sum(len(text) for row in cells for text in row), TEXT_PER_NODE * limits.max_nodes
    )
    atoms = [sum(map(count_atoms, row)) for row in cells]
    largest = find_largest_graph(trained, limits)
    excesses = (_find_excess(row, count, row_format, limits, largest) for row, count in zip(cells, atoms, strict=True))
    errors = {row: why for row, why in enumerate(excesses) if why}
    fitting = [row for row in range(len(smiles)) if row not in errors]
    ends = dict(zip(fitting, accumulate(atoms[row] for row in fitting), strict=True))
    _check_size("smiles", "nodes", max(ends.values(), default=0), limits.max_nodes)
    parts = []
    for _, group in groupby(fitting, lambda row: ends[row] // ATOMS_AT_ONCE):
        check()
        rows = list(group)
        read = read_smiles([cells[row] for row in rows], name="smiles", workers=1, row_format=row_format)
        errors |= {rows[refused.row]: refused.explain() for refused in read.refused}
        if len(read.graphs):
            parts.append(read.graphs)
    if not parts:
        first = min(errors)
        raise InputError(f"smiles[{first}]: {errors[first]}")
    return RequestGraphs(concatenate(parts), errors=errors)


def _find_excess(
    texts: Sequence[str], atoms: int, row_format: MoleculeFormat, limits: ServeConfig, largest: int
) -> str:
    """Why a row is too large to be read, or has not the SMILES that it needs; or nothing."""
    if len(texts) != row_format.components:
        expected = "one SMILES" if row_format.components == 1 else f"a list of {row_format.components} SMILES"
        return f"the model reads {expected}, got {len(texts)}"
    if (length := sum(map(len, texts))) > limits.max_text:
        return f"{length:,} characters, at most {limits.max_text:,} are allowed"
    if atoms > largest:
        return f"{atoms:,} nodes in one graph, at most {largest:,} are allowed"
    return ""


def _read_code(code: str, trained: TrainedModel, limits: ServeConfig, check: Check) -> RequestGraphs:
    _check_size("code", "characters", len(code), CODE_PER_NODE * limits.max_nodes)
    functions: list[Function] = []
    check()
    try:
        for function in parse_functions(code.encode(errors="backslashreplace"), limits.max_graph_nodes):
            check()
            functions.append(function)
            _check_size("code", "functions", len(functions), limits.max_graphs)
            _check_size("code", "nodes", sum(len(each.types) for each in functions), limits.max_nodes)
    except UnparsableError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise InputError(f"code{line}: {error}; it is not Python") from None
    _check_count("code", len(functions), limits, "functions")
    assert trained.code_vocabularies is not None
    return RequestGraphs(encode_functions(functions, *trained.code_vocabularies, name="code"), functions)


def _read_graphs(graphs: list[Graph], trained: TrainedModel, limits: ServeConfig, check: Check) -> RequestGraphs:
    _check_count("graphs", len(graphs), limits)
    _check_size("graphs", "nodes", sum(graph.nodes for graph in graphs), limits.max_nodes)
    ends, tables, first = [], defaultdict(list), 0
    for i, graph in enumerate(graphs):
        check()
        pairs, row = _read_edges(f"graphs[{i}].edges", graph)
        ends.append(pairs + first)
        first += graph.nodes
        for name in TABLES:
            table = _read_table(f"graphs[{i}].{name}", name, graph, trained)
            if table is not None:
                tables[name].append(table[row] if name.startswith("edge") else table)
    batch = GraphBatch.from_edges(
        torch.from_numpy(np.concatenate(ends).T.copy()),
        [graph.nodes for graph in graphs],
        targets=torch.zeros(len(graphs), 0),
        **{name: torch.from_numpy(np.concatenate(parts)) for name, parts in tables.items()},  # type: ignore[arg-type]
    )
    features = trained.model.features
    labels = {"node_labels": features.nodes.labels, "edge_labels": features.edges.labels}
    counts = {name: counts for name, counts in labels.items() if counts}
    return RequestGraphs(PackedDataset.from_batch("graphs", Unlabelled(), batch, label_counts=counts))


_READERS = {"smiles": _read_molecules, "graphs": _read_graphs, "code": _read_code}


def _read_edges(where: str, graph: Graph) -> tuple[Int[np.ndarray, "edges 2"], Int[np.ndarray, "edges"]]:
    """Edges in both directions unless directed, as all readers have them, and the row of the request of each."""
    pairs = np.array(graph.edges, np.int64).reshape(-1, 2)
    if len(pairs) and not (0 <= pairs.min() and pairs.max() < graph.nodes):
        raise InputError(f"{where}: nodes are 0 to {graph.nodes - 1}, got {pairs.min()} to {pairs.max()}")
    row = np.sort(np.unique(pairs[:, 0] << 32 | pairs[:, 1], return_index=True)[1])  # the first of parallel edges
    row = row[pairs[row, 0] != pairs[row, 1]]
    key, reverse_key = (pairs[row, a] << 32 | pairs[row, b] for a, b in ((0, 1), (1, 0)))
    reversed_row = row[:0] if graph.directed else row[~np.isin(reverse_key, key)]
    return np.concatenate([pairs[row], pairs[reversed_row, ::-1]]), np.concatenate([row, reversed_row])


def _read_table(where: str, name: str, graph: Graph, trained: TrainedModel) -> np.ndarray | None:
    """A row of columns for each node or edge, with the model's indices of categories; None if the model reads none."""
    unit, table = name[:4], getattr(graph, name)
    rows = graph.nodes if unit == "node" else len(graph.edges)
    columns = getattr(trained.model.features, f"{unit}s")
    width = len(columns.labels) if name.endswith("labels") else columns.values
    if not width:
        if table is not None:
            raise InputError(f"{where}: the model reads none; leave it out")
        return None
    if table is None and rows:
        raise InputError(f"{where}: missing; the model reads {width} of each {unit}")
    table = table or []
    if len(table) != rows:
        raise InputError(f"{where}: {len(table)} rows for {rows} {unit}s; give one row for each {unit}")
    for i, row in enumerate(table):
        if len(row) != width:
            raise InputError(f"{where}[{i}]: {len(row)} columns, and the model reads {width}")
    if name.endswith("labels"):
        return _read_labels(where, name, table, columns.labels, trained)
    values = np.array(table, np.float64).reshape(rows, width)
    if not (np.abs(values) <= np.finfo(np.float32).max).all():
        raise InputError(f"{where}: a number is too large for 32 bits")
    return values.astype(np.float32)


def _read_labels(
    where: str, name: str, table: list[list[Label]], counts: Sequence[int], trained: TrainedModel
) -> Int[np.ndarray, "rows columns"]:
    """The model's indices of categories that are given by index or by name."""
    vocabularies = [trained.vocabularies.get(f"{name}/{column}", ()) for column in range(len(counts))]
    index_of = [{word: index for index, word in enumerate(words)} for words in vocabularies]
    labels = np.empty((len(table), len(counts)), np.int64)
    for i, row in enumerate(table):
        for column, label in enumerate(row):
            index = index_of[column].get(label) if isinstance(label, str) else label
            if index is None or not index < counts[column]:
                names = f" ({', '.join(vocabularies[column][:12])})" if vocabularies[column] else ""
                raise InputError(
                    f"{where}[{i}][{column}]: {label!r:.60} is not a category of the model; choose one of 0 to "
                    f"{counts[column] - 1}{names}"
                )
            labels[i, column] = index
    return labels


def concatenate(parts: Sequence[PackedDataset]) -> PackedDataset:
    """All graphs in one data set; their columns have the same categories."""
    first, *others = parts
    if not others:
        return first
    pointers = {name: ptr_from_counts(torch.cat([getattr(part, name).diff() for part in parts])) for name in POINTERS}
    flat = (*NODE_COLUMNS, *EDGE_COLUMNS, "source", "in_degree", "targets")
    names = [name for name in flat if getattr(first, name) is not None]
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    texts = None
    if first.texts is not None:
        texts = torch.from_numpy(
            np.frombuffer("\n".join(map("\n".join, map(get_smiles, parts))).encode(), np.uint8).copy()
        )
    return replace(first, **pointers, **columns, is_symmetric=all(part.is_symmetric for part in parts), texts=texts)
