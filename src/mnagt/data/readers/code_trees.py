"""Functions of Python sources as trees in the schema of ogbg-code2, which docs/code.md describes.

Types have the names that ``ast`` gave them when ogbg-code2 was made, whatever version of Python runs now.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

MASK = "_mask_"
MAX_NODES = 1000

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields that hold statements."""


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


def parse_functions(source: bytes, max_nodes: int = MAX_NODES, max_functions: int | None = None) -> list[Function]:
    """The functions of a source, methods and nested functions too, in order; at most ``max_functions`` of them.

    The source is decoded as Python would do it: by its cookie or byte order mark, or else as UTF-8.
    """
    tree = _parse(source)
    return [_function(node, name, max_nodes) for name, node in islice(_definitions(tree), max_functions)]


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
    for field in _fields(type(node)):
        value = getattr(node, field, None)
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
