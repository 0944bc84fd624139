"""Functions of Python sources as trees in the schema of ogbg-code2, which docs/code.md describes.

Types have the names that ``ast`` gave them when ogbg-code2 was made, whatever version of Python runs now. Trees in
numbers are written in the files of its layout, or become the graphs of a model.
"""

import ast
import gzip
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnagt.data.categories import category_indices
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.code_config import MAX_NODES
from mnagt.data.readers.ogb import Links, next_tokens, pack_code
from mnagt.data.splits import PARTS
from mnagt.tasks import UNKNOWN

MASK = "_mask_"
NONE = "__NONE__"
CONSTANTS = ("Str", "Num", "Bytes")
"""Types whose attribute is a value, not a name."""

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields that hold statements."""
_LINES_AT_ONCE = 1 << 16


class UnparsableError(ValueError):
    """Source that is not Python, or not that of this interpreter; ``line`` is where, if that is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class Function:
    """A function and its tree. The nodes come in depth-first order."""

    name: str
    """With the classes and functions around it: ``Reader.read``."""
    line: int
    types: list[str]
    attributes: list[str | None]
    parents: list[int]
    """The node above each; -1 for the first."""
    depths: list[int]
    is_clipped: bool
    """There were more nodes than asked for; the first are here."""


def parse_functions(source: bytes, max_nodes: int = MAX_NODES) -> Iterator[Function]:
    """The functions of a source, methods and nested functions too, in order.

    The source is decoded as Python would do it: by its cookie or byte order mark, or else as UTF-8.
    """
    tree = _parse(source)
    return (_function(node, name, max_nodes) for name, node in _definitions(tree))


def sub_tokens(name: str) -> list[str]:
    """The words of a name, in lower case: ``HTTPServer2`` is http, server, 2. ``_`` has none."""
    return _BORDERS.sub(" ", name).replace("_", " ").lower().split()


_BORDERS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_])(?=\d)")


def _parse(source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the source, such as strange escapes
            return ast.parse(source)
    except SyntaxError as error:
        raise UnparsableError(error.msg[:200], error.lineno) from None
    except (ValueError, LookupError) as error:  # null bytes; an encoding that is not one of text
        raise UnparsableError(str(error)[:200]) from None
    except (RecursionError, MemoryError):
        raise UnparsableError("nested too deeply") from None


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a module, with their full names."""
    stack: list[tuple[str, Any]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            prefix = f"{prefix}{node.name}."
        inner = [child for block in _BLOCKS for child in getattr(node, block, ())]
        stack.extend((prefix, child) for child in reversed(inner))


def _function(root: ast.FunctionDef | ast.AsyncFunctionDef, name: str, max_nodes: int) -> Function:
    types: list[str] = ["Module"]
    attributes: list[str | None] = [None]
    parents, depths = [-1], [0]
    stack: list[tuple[ast.AST, int]] = [(root, 0)]
    while stack and len(types) < max_nodes:
        node, parent = stack.pop()
        kind, attribute = _type_and_attribute(node)
        if attribute == root.name and kind.endswith("FunctionDef"):
            attribute = MASK
        at = len(types)
        types.append(kind)
        attributes.append(attribute)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        stack.extend([(child, at) for child in reversed(_children(node))])
    return Function(name, root.lineno, types, attributes, parents, depths, is_clipped=bool(stack))


def _type_and_attribute(node: ast.AST) -> tuple[str, str | None]:
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    field = _attribute_field(type(node))
    attribute = field and getattr(node, field)
    return type(node).__name__, attribute if isinstance(attribute, str) else None


@cache
def _attribute_field(cls: type[ast.AST]) -> str | None:
    return next((field for field in ("name", "arg", "id", "attr") if field in cls._fields), None)


def _constant(value: object) -> tuple[str, str | None]:
    match value:
        case str():
            return "Str", value if value.isascii() else value.encode(errors="backslashreplace").decode()
        case bytes():
            return "Bytes", str(value)
        case None | bool():
            return "NameConstant", None
        case int():
            return "Num", str(value) if value.bit_length() < _LONGEST_INT else hex(value)
        case float() | complex():
            return "Num", str(value)
    return "Ellipsis", None


_LONGEST_INT = 2048
"""Bits of a number that is written in decimals; Python refuses that for very long ones."""


class _Wrapper(ast.AST):
    _fields = ("inner",)

    def __init__(self, *inner: ast.AST) -> None:
        self.inner = list(inner)


class Index(_Wrapper):
    """One thing in square brackets."""


class ExtSlice(_Wrapper):
    """Several things in square brackets, slices among them."""


def _children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Subscript):
        return [node.value, _wrap_subscript(node.slice), node.ctx]
    children = []
    for name in _fields(type(node)):
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            children.append(value)
        elif isinstance(value, list):
            children += [item for item in value if isinstance(item, ast.AST)]
    return children


@cache
def _fields(cls: type[ast.AST]) -> tuple[str, ...]:
    """Where a node may have children that count."""
    return tuple(field for field in cls._fields if field != "decorator_list")


def _wrap_subscript(node: ast.expr) -> ast.AST:
    if isinstance(node, ast.Slice):
        return node
    if isinstance(node, ast.Tuple) and any(isinstance(item, ast.Slice) for item in node.elts):
        return ExtSlice(*map(_wrap_subscript, node.elts))
    return Index(node)


# Trees in numbers


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
    functions: Sequence[Function], types: Sequence[str], attributes: Sequence[str], name: str = "functions"
) -> PackedDataset:
    """These functions as graphs, in the words that a model has learned, without targets."""
    trees = Trees()
    sizes, order, (type_of, attribute_of, parents, depths) = _end_to_end([trees.encode(each) for each in functions])
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
            while some := list(islice(lines, _LINES_AT_ONCE)):
                packed.write("\n".join([*some, ""]).encode(errors="backslashreplace"))
        raw.flush()
        os.fsync(raw.fileno())
