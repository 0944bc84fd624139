"""The package's own shape: imports point one way, between packages and between modules."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mnagt

SOURCE = Path(mnagt.__file__).parent
ORDER = [
    "lazy",
    "version",
    "errors",
    "plugins",
    "files",
    "registry",
    "migrations",
    "settings",
    "metrics",
    "devices",
    "ops",
    "linear",
    "dropout",
    "graphs",
    "tasks",
    "attention",
    "nn",
    "models",
    "reference",
    "data",
    "installation",
    "runs",
    "inference",
    "training",
    "reports",
    "experiments",
    "screening",
    "explain",
    "monitor",
    "serve",
    "estimators",
    "cli",
    "__main__",
]
"""Packages and single files of ``mnagt``. Each may import from those before it, and from itself."""
FORBIDDEN = {("data", "attention"), ("data", "nn"), ("data", "models")}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
"""All modules but the package's own ``__init__``, which names where public things live and imports them on demand."""


def module_of(path: Path) -> str:
    return ".".join(("mnagt", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path) for path in FILES}


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """The modules of ``mnagt`` that a file imports, in functions too, but not those for type checkers only.

    Those of the stub beside it are among them: a package imports them at first use (``mnagt.lazy``).
    """
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.append(submodule if submodule in MODULES else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    for source in (path, path.with_suffix(".pyi")):
        if source.exists():
            visit(ast.parse(source.read_text()))
    return tuple(name for name in found if name in MODULES)


def test_files_have_at_most_400_lines_and_functions_60():
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    lengths = {
        f"{path}, {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) > 2000
    assert {path: lines for path, text in texts.items() if (lines := len(text.splitlines())) > 400} == {}
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def part_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_and_file_has_its_place_in_the_order():
    assert {part_of(module) for module in MODULES} <= set(ORDER)


def test_imports_point_one_way():
    imports = [(module_of(path), other) for path in FILES for other in imports_of(path)]
    parts = [(module, other, part_of(module), part_of(other)) for module, other in imports]
    wrong = [
        f"{module} may not import {other}"
        for module, other, own, imported in parts
        if ORDER.index(imported) > ORDER.index(own) or (own, imported) in FORBIDDEN
    ]
    assert len(imports) > 1000
    assert not wrong


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter({module_of(path): set(imports_of(path)) for path in FILES}).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' <- '.join(error.args[1])}")
