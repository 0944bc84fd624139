"""Trees of code as numbers: in the files of ogbg-code2's layout, and as graphs for a model."""

import gzip
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnagt.data.categories import category_indices
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.code_trees import MASK, Function
from mnagt.data.readers.ogb import Links, next_tokens, pack_code
from mnagt.data.splits import PARTS
from mnagt.tasks import UNKNOWN

NONE = "__NONE__"
CONSTANTS = ("Str", "Num", "Bytes")
"""Types whose attribute is a value, not a name."""

_LINES_AT_ONCE = 1 << 16


@dataclass(eq=False)
class Trees:
    """Trees and their targets, in numbers given to words as they come; ``None``, no attribute, is 0."""

    types: dict[str, int] = field(default_factory=lambda: {name: i for i, name in enumerate(CONSTANTS)})
    attributes: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    nodes: list[NDArray[np.int32]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """Sub-tokens, with spaces between."""

    def encode(self, function: Function) -> NDArray[np.int32]:
        """Type, attribute, parent and depth (rows) of each node."""
        types = [self.types.setdefault(word, len(self.types)) for word in function.types]
        attributes = [self.attributes.setdefault(word, len(self.attributes)) for word in function.attributes]
        return np.array([types, attributes, function.parents, function.depths], np.int32)

    def add(self, nodes: NDArray[np.int32], label: str) -> None:
        self.nodes.append(nodes)
        self.labels.append(label)


def write_layout(folder: Path, trees: Trees, projects: Sequence[str], parts: Sequence[str], vocabulary: int) -> None:
    """All files of the layout; each tree has a project and a part.

    Types and the commonest attributes of the training part have a number, attributes up to ``vocabulary``.
    """
    sizes, order, (types, attributes, parents, depths) = _end_to_end(trees.nodes)
    is_train = np.repeat(np.array(parts) == "train", sizes)
    type_words = [UNKNOWN, *_most_common(trees.types, types[is_train], min_count=1)]
    special = [NONE, UNKNOWN, MASK]
    common = [word for word in _most_common(trees.attributes, attributes[is_train], min_count=2) if word not in special]
    attribute_words = [*special, *common][:vocabulary]
    type_index = _word_indices(trees.types, type_words)[types]
    attribute_index = _word_indices(trees.attributes, attribute_words)[attributes]

    is_child = parents >= 0
    tables = {
        "num-node-list": [sizes],
        "num-edge-list": [sizes - 1],
        "edge": [parents[is_child], order[is_child]],
        "node-feat": [type_index, attribute_index],
        "node_depth": [depths],
        "node_dfs_order": [order],
        "node_is_attributed": [(attributes > 0).astype(int)],
    }
    for name, columns in tables.items():
        _write_lines(folder / "raw" / f"{name}.csv.gz", _rows(columns))
    _write_lines(folder / "raw" / "graph-label.csv.gz", trees.labels)
    for name, head, words in (
        ("typeidx2type", "type idx,type", type_words),
        ("attridx2attr", "attr idx,attr", attribute_words),
        ("graphidx2project", "graph idx,project", projects),
    ):
        rows = (f"{i},{_quote_csv(word)}" for i, word in enumerate(words))
        _write_lines(folder / "mapping" / f"{name}.csv.gz", [head, *rows])
    for part in PARTS:
        indices = (str(i) for i, of in enumerate(parts) if of == part)
        _write_lines(folder / "split" / "project" / f"{part}.csv.gz", indices)
    (folder / "RELEASE_v1.txt").touch()


def encode_functions(
    found: Sequence[Function], types: Sequence[str], attributes: Sequence[str], name: str = "functions"
) -> PackedDataset:
    """These functions as graphs, in the words that a model has learned; nothing is asked of them."""
    trees = Trees()
    sizes, order, (type_of, attribute_of, parents, depths) = _end_to_end([trees.encode(each) for each in found])
    labels = [_word_indices(trees.types, types)[type_of], _word_indices(trees.attributes, attributes)[attribute_of]]
    syntax = Links(np.column_stack([parents, order])[parents >= 0], sizes - 1)
    tokens = next_tokens(attribute_of > 0, order, sizes)
    return pack_code(name, sizes, np.column_stack(labels), depths, syntax, tokens, (tuple(types), tuple(attributes)))


def _end_to_end(nodes: list[NDArray[np.int32]]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Sizes of the trees, each node's place in its tree, and all columns."""
    sizes = np.array([each.shape[1] for each in nodes])
    order = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    return sizes, order, np.concatenate(nodes, axis=1)


def _most_common(index_of: Mapping[Any, int], column: NDArray[np.int32], min_count: int) -> list[str]:
    """The words that occur at least ``min_count`` times in ``column``, most common first."""
    counts = np.bincount(column, minlength=len(index_of)).tolist()
    common = [word for word, i in index_of.items() if word is not None and counts[i] >= min_count]
    return sorted(common, key=lambda word: (-counts[index_of[word]], word))


def _word_indices(index_of: Mapping[Any, int], vocabulary: Sequence[str]) -> NDArray[np.int64]:
    """The index of each word in the vocabulary, in the order of ``index_of``."""
    return np.array(category_indices((NONE if word is None else word for word in index_of), vocabulary))


def _quote_csv(word: str) -> str:
    """The word as a field of a CSV file."""
    return '"' + word.replace('"', '""') + '"' if any(sign in word for sign in ',"\r\n') else word


def _rows(columns: Sequence[NDArray[np.integer]]) -> Iterator[str]:
    """The rows of a table of numbers."""
    for at in range(0, len(columns[0]), _LINES_AT_ONCE):
        numbers = (map(str, column[at : at + _LINES_AT_ONCE].tolist()) for column in columns)
        yield from map(",".join, zip(*numbers, strict=True))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """The same lines give the same bytes, whenever they are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = iter(lines)
    with path.open("wb") as raw:
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
            while some := list(itertools.islice(lines, _LINES_AT_ONCE)):
                packed.write("\n".join([*some, ""]).encode(errors="backslashreplace"))
        raw.flush()
        os.fsync(raw.fileno())
