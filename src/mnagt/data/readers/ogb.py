"""Reads OGB's layout of data sets of graphs (Hu et al., 2020), as docs/data.md describes it: molecules, and code.

Each edge of the files runs both ways here. Columns have all categories of OGB's featuriser, whether they occur or not.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.dataset_files import DatasetFiles, find_ogb_files
from mnagt.data.readers.number_tables import BINARY_LABELS, OPTIONAL_FLOATS
from mnagt.data.splits import PARTS, Split
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import ATOMS, BONDS, MOLECULES
from mnagt.graphs.sparse import ptr_from_counts
from mnagt.tasks import MultiLabel, Regression, SubTokens, Task, Unlabelled, word_keys

VERSION = "ogb-1"
"""Changes whenever the same files would be read differently."""

DEEPEST = 20
EDGE_KINDS = ("child", "parent", "next token", "token before")

_EDGES_AT_ONCE = 1 << 21


def read_ogb(path: Path, *, name: str | None = None, metric: str | None = None) -> PackedDataset:
    """The data set in ``path``: a zip, or a folder that holds ``raw/``, or ``raw/`` itself.

    ``metric`` decides the task: 'ap' or 'rocauc' for multi-label, 'rmse' for regression, 'f1' for sub-tokens. If it is
    None, labels that are all 0, 1 or empty are multi-label, scored by ROC-AUC, and others are regression.
    """
    files = find_ogb_files(Path(path))
    name = name or files.name
    sizes, edge_counts = _counts(files, "num-node-list"), _counts(files, "num-edge-list")
    files.check_count("raw/num-edge-list", len(edge_counts), len(sizes), "graph")
    files.refuse_line("raw/num-node-list", sizes == 0, lambda at: "a graph without nodes; leave it out")
    is_code = "raw/node_depth" in files
    task, targets = _targets(files, len(sizes), "f1" if is_code else metric)
    ends = _ends(files, sizes, edge_counts)
    official = _official(files, len(sizes))
    if is_code:
        graphs = _code(files, name, sizes, Links(ends, edge_counts))
    else:
        atoms = _labels(files, "raw/node-feat", int(sizes.sum()), "node", ATOMS)
        bonds = _labels(files, "raw/edge-feat", len(ends), "edge", BONDS)
        graphs = pack_molecules(name, sizes, atoms, Links(ends, edge_counts, forward=bonds, backward=bonds))
    return replace(graphs, task=task, targets=targets, official=official)


# Graphs from flat tables


@dataclass(frozen=True)
class Links:
    """Some of the edges of every graph, end to end. Each runs both ways."""

    ends: NDArray[np.integer]
    """(from, to) of each, nodes counted from 0 in each graph."""
    counts: NDArray[np.integer]
    """How many each graph has."""
    forward: NDArray[np.integer] | int = 0
    """Labels of the edge as it stands, a row each; or the label of all."""
    backward: NDArray[np.integer] | int = 0
    """Labels of the edge that runs back."""


def pack_links(
    name: str,
    sizes: NDArray[np.integer],
    node_labels: NDArray[np.integer],
    links: list[Links],
    label_counts: Mapping[str, tuple[int, ...]],
    vocabularies: Mapping[str, tuple[str, ...]] | None = None,
) -> PackedDataset:
    """A data set without targets from flat tables. Edges have fewer than 128 categories."""
    node_ptr = ptr_from_counts(torch.from_numpy(sizes.astype(np.int64)))
    source, in_degree, edge_labels = _both_ways(node_ptr.numpy(), links, len(label_counts["edge_labels"]))
    return PackedDataset(
        name=name,
        task=Unlabelled(),
        node_ptr=node_ptr,
        edge_ptr=ptr_from_counts(in_degree.long())[node_ptr],
        source=source,
        in_degree=in_degree,
        targets=torch.zeros(len(sizes), 0),
        label_counts=label_counts,
        node_labels=torch.from_numpy(node_labels),
        edge_labels=edge_labels,
        vocabularies=vocabularies or {},
    )


def pack_molecules(
    name: str,
    sizes: NDArray[np.integer],
    atoms: NDArray[np.integer],
    bonds: Links,
    features: Features = MOLECULES,
) -> PackedDataset:
    """Molecules, with the columns of OGB's featuriser or the other ``features`` of a ``MoleculeFormat``."""
    counts = {"node_labels": features.nodes.labels, "edge_labels": features.edges.labels}
    return pack_links(name, sizes, atoms, [bonds], counts)


def _both_ways(node_ptr: NDArray[np.int64], links: list[Links], columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source, in-degree and labels of all edges, sorted by destination and source; parallel edges as they come.

    Sorted some graphs at a time, so that what this takes besides the outcome stays small.
    """
    ptrs = [np.concatenate([[0], np.cumsum(some.counts)]) for some in links]
    edges = 2 * sum(len(some.ends) for some in links)
    source, label = np.empty(edges, np.int32), np.empty((edges, columns), np.int8)
    in_degree = np.empty(node_ptr[-1], np.int32)
    cuts = np.searchsorted(sum(ptrs), np.arange(0, edges // 2 + _EDGES_AT_ONCE, _EDGES_AT_ONCE))
    cuts = np.unique(np.append(cuts.clip(max=len(node_ptr) - 1), [0, len(node_ptr) - 1]))
    done = 0
    for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        start, nodes = int(node_ptr[first]), int(node_ptr[last] - node_ptr[first])
        keys, rows = [], []
        for some, ptr in zip(links, ptrs, strict=True):
            part = slice(int(ptr[first]), int(ptr[last]))
            ends = some.ends[part].astype(np.int64)
            base = np.repeat(node_ptr[first:last] - start, some.counts[first:last])
            for (u, v), each in (((0, 1), some.forward), ((1, 0), some.backward)):
                keys.append((ends[:, v] + base) << 32 | ends[:, u])
                rows.append(np.full((len(ends), columns), each, np.int8) if isinstance(each, int) else each[part])
        key, row = np.concatenate(keys), np.concatenate(rows)
        order = key.argsort(kind="stable")
        block = slice(done, done + len(key))
        source[block], label[block] = key[order].astype(np.int32), row[order]
        in_degree[start : start + nodes] = np.bincount(key >> 32, minlength=nodes)
        done = block.stop
    return torch.from_numpy(source), torch.from_numpy(in_degree), torch.from_numpy(label)


# What the files say


def _counts(files: DatasetFiles, field: str) -> NDArray[np.int64]:
    counts = files.read_numbers(f"raw/{field}", columns=1)[:, 0].astype(np.int64)
    files.refuse_line(f"raw/{field}", counts < 0, lambda at: f"{counts[at]} is below 0; it counts rows")
    if float(counts.sum(dtype=np.float64)) >= 2**31:
        raise InputError(f"{files.label(f'raw/{field}')}: adds up to over {2**31 - 1} rows, more than can be counted")
    return counts


def _ends(files: DatasetFiles, sizes: NDArray[np.int64], edge_counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """(from, to) of each line of ``edge``, nodes counted in each graph."""
    edges = int(edge_counts.sum())
    if not edges:
        return np.empty((0, 2), np.int32)
    ends = files.read_numbers("raw/edge", columns=2, rows=(edges, "edge"))
    size = np.repeat(sizes.astype(np.int32), edge_counts)

    def describe(at: int) -> str:
        graph = np.searchsorted(np.cumsum(edge_counts), at, side="right")
        u, v = ends[at].tolist()
        return f"edge {u},{v} names a missing node; graph {graph} (counted from 0) has nodes 0 to {size[at] - 1}"

    files.refuse_line("raw/edge", (ends.min(axis=1) < 0) | (ends.max(axis=1) >= size), describe)
    return ends.astype(np.int32, copy=False)


def _labels(files: DatasetFiles, field: str, rows: int, what: str, counts: tuple[int, ...]) -> NDArray[np.integer]:
    """Columns of categories, as small as they can be stored."""
    smallest = next(kind for kind in (np.int8, np.int16, np.int32) if max(counts) - 1 <= np.iinfo(kind).max)
    if not rows:
        return np.empty((0, len(counts)), smallest)
    labels = files.read_numbers(field, columns=len(counts), rows=(rows, what))
    for column, count in enumerate(counts):
        files.check_range(field, labels[:, column], count, f"column {column + 1}")
    return labels.astype(smallest)


def _targets(files: DatasetFiles, graphs: int, metric: str | None) -> tuple[Task, Tensor]:
    field = "raw/graph-label"
    if field not in files:
        return Unlabelled(), torch.zeros(graphs, 0)
    if metric == "f1":
        lines = files.read_text(field).removesuffix("\n").split("\n")
        files.check_count(field, len(lines), graphs, "graph")
        sequences = [line.split() for line in lines]
        if not all(sequences):
            raise InputError(
                f"{files.label(field)}, line {sequences.index([]) + 1}: no sub-tokens; give the graph some"
            )
        words, keys = word_keys(sequences)
        return SubTokens(words), keys
    kind = OPTIONAL_FLOATS if metric in (None, "rmse") else BINARY_LABELS
    values = files.read_numbers(field, kind, rows=(graphs, "graph"))
    if metric is None:
        metric = "rocauc" if np.isin(values[np.isfinite(values)], (0, 1)).all() else "rmse"
    names = _target_names(files, values.shape[1])
    return Regression(names) if metric == "rmse" else MultiLabel(names, metric), torch.from_numpy(values)


def _target_names(files: DatasetFiles, count: int) -> tuple[str, ...]:
    """What ``mapping/mol`` calls the targets: its columns besides the molecule's."""
    head = next(files.read_blocks("mapping/mol"), b"").split(b"\n", 1)[0] if "mapping/mol" in files else b""
    try:
        columns = next(csv.reader([head.decode(errors="replace").strip()]), [])
    except csv.Error:
        columns = []
    named = tuple(column for column in columns if column not in ("smiles", "mol_id"))
    return named if len(named) == count else tuple(f"target_{i}" for i in range(count))


def _official(files: DatasetFiles, graphs: int) -> Tensor | None:
    """The part that each graph belongs to, by the split that comes with the data set."""
    if files.official_split is None:
        return None
    parts = []
    for name in PARTS:
        field = f"split/{files.official_split}/{name}"
        indices = files.read_numbers(field, columns=1)[:, 0]
        files.check_range(field, indices, graphs, "graph")
        parts.append(torch.from_numpy(indices.astype(np.int64)))
    try:
        return Split(*parts).to_parts(graphs).to(torch.int8)
    except InputError as error:
        raise InputError(f"{files.label(f'split/{files.official_split}/train')} and its like: {error}") from None


def _code(files: DatasetFiles, name: str, sizes: NDArray[np.int64], syntax: Links) -> PackedDataset:
    nodes = int(sizes.sum())
    types, attributes = _words(files, "mapping/typeidx2type"), _words(files, "mapping/attridx2attr")
    labels = _labels(files, "raw/node-feat", nodes, "node", (len(types), len(attributes)))
    depth = _node_column(files, "raw/node_depth", nodes)
    is_attributed = _node_column(files, "raw/node_is_attributed", nodes, below=2)
    tokens = next_tokens(is_attributed, _node_column(files, "raw/node_dfs_order", nodes), sizes)
    return pack_code(name, sizes, labels, depth, syntax, tokens, (types, attributes))


def pack_code(
    name: str,
    sizes: NDArray[np.integer],
    labels: NDArray[np.integer],
    depth: NDArray[np.integer],
    syntax: Links,
    tokens: Links,
    words: tuple[tuple[str, ...], tuple[str, ...]],
) -> PackedDataset:
    """Trees of code. ``labels`` are type and attribute of each node, ``words`` what those stand for."""
    words_of = (*words, tuple(map(str, range(DEEPEST + 1))))
    return pack_links(
        name,
        sizes,
        np.column_stack([labels, depth.clip(max=DEEPEST).astype(labels.dtype)]),
        [replace(syntax, forward=0, backward=1), replace(tokens, forward=2, backward=3)],
        {"node_labels": tuple(map(len, words_of)), "edge_labels": (len(EDGE_KINDS),)},
        {f"node_labels/{i}": each for i, each in enumerate(words_of)} | {"edge_labels/0": EDGE_KINDS},
    )


def next_tokens(is_attributed: NDArray[np.integer], order: NDArray[np.integer], sizes: NDArray[np.int64]) -> Links:
    """From each node with an attribute to the next in ``order``."""
    node = np.flatnonzero(is_attributed)
    graph = np.repeat(np.arange(len(sizes)), sizes)[node]
    node = node[(graph << 32 | order[node]).argsort(kind="stable")]
    node -= (np.cumsum(sizes) - sizes)[graph]
    is_same_graph = graph[1:] == graph[:-1]
    ends = np.column_stack([node[:-1], node[1:]])[is_same_graph].astype(np.int32)
    return Links(ends, np.bincount(graph[1:][is_same_graph], minlength=len(sizes)))


def _words(files: DatasetFiles, field: str) -> tuple[str, ...]:
    """The second column of a table with a head, whose first counts from 0. Words may hold commas and ends of lines."""
    rows = csv.reader(io.StringIO(files.read_text(field), newline=""))
    next(rows, None)
    words = []
    try:
        for row in rows:
            if len(row) != 2 or row[0] != str(len(words)):
                raise InputError(f"{files.label(field)}, line {rows.line_num}: expected {len(words)} and its word")
            words.append(row[1])
    except csv.Error as error:
        raise InputError(f"{files.label(field)}, line {rows.line_num}: {error}; write it again") from None
    if not words:
        raise InputError(f"{files.label(field)}: no words in it; fetch the data set again")
    return tuple(words)


def _node_column(files: DatasetFiles, field: str, nodes: int, below: int = 2**31) -> NDArray[np.integer]:
    column = files.read_numbers(field, columns=1, rows=(nodes, "node"))[:, 0]
    files.check_range(field, column, below, "column 1")
    return column
