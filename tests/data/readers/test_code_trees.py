import gzip
import itertools
from importlib import metadata
from pathlib import Path

import pytest

from mnagt.data.readers.code_trees import UnparsableError, parse_functions, sub_tokens
from mnagt.data.readers.dataset_files import find_ogb_files
from mnagt.data.readers.ogb import _words


def tree(source: str) -> list[tuple[str, str | None, int]]:
    (function,) = parse_functions(source.encode())
    return list(zip(function.types, function.attributes, function.depths, strict=True))


def test_a_tree_has_the_schema_of_code2():
    source = "@cached\ndef first(rows, *, at=0) -> str:\n    'Doc.'\n    return rows[at].name or None\n"
    assert tree(source) == [
        ("Module", None, 0),
        ("FunctionDef", "_mask_", 1),
        ("arguments", None, 2),
        ("arg", "rows", 3),
        ("arg", "at", 3),
        ("Num", "0", 3),
        ("Expr", None, 2),
        ("Str", "Doc.", 3),
        ("Return", None, 2),
        ("BoolOp", None, 3),
        ("Or", None, 4),
        ("Attribute", "name", 4),
        ("Subscript", None, 5),
        ("Name", "rows", 6),
        ("Load", None, 7),
        ("Index", None, 6),
        ("Name", "at", 7),
        ("Load", None, 8),
        ("Load", None, 6),
        ("Load", None, 5),
        ("NameConstant", None, 4),
        ("Name", "str", 2),
        ("Load", None, 3),
    ]


X = [("Subscript", None), ("Name", "x"), ("Load", None)]
Y = [("Name", "y"), ("Load", None)]


@pytest.mark.parametrize(
    ("expression", "inside"),
    [
        ("''", [("Str", "")]),
        ("b'x'", [("Bytes", "b'x'")]),
        ("1.50", [("Num", "1.5")]),
        ("2j", [("Num", "2j")]),
        ("True", [("NameConstant", None)]),
        ("...", [("Ellipsis", None)]),
        ("'\\ud800'", [("Str", "\\ud800")]),
        (f"0x{'f' * 9000}", [("Num", f"0x{'f' * 9000}")]),
        ("x[y, z]", [*X, ("Index", None), ("Tuple", None), *Y, ("Name", "z"), *2 * [("Load", None)], ("Load", None)]),
        ("x[1:]", [*X, ("Slice", None), ("Num", "1"), ("Load", None)]),
        ("x[1:, y]", [*X, ("ExtSlice", None), ("Slice", None), ("Num", "1"), ("Index", None), *Y, ("Load", None)]),
        ("f(k=1)", [("Call", None), ("Name", "f"), ("Load", None), ("keyword", "k"), ("Num", "1")]),
    ],
)
def test_constants_and_brackets_are_called_as_they_were(expression, inside):
    found = tree(f"def f():\n    {expression}\n")
    assert [(kind, attribute) for kind, attribute, _ in found[4:]] == inside


def test_a_name_is_masked_where_it_is_defined_and_only_there():
    outer, inner = parse_functions(b"def f(f):\n    def f():\n        return f\n    return f()\n")
    masked = [(kind, attribute) for kind, attribute in zip(outer.types, outer.attributes, strict=True) if attribute]
    assert masked == [("FunctionDef", "_mask_"), ("arg", "f"), ("FunctionDef", "_mask_"), ("Name", "f"), ("Name", "f")]
    assert inner.types[1:3] == ["FunctionDef", "arguments"]


def test_every_function_is_found_with_its_full_name_and_line():
    source = b"""
if x:
    def a(): pass
else:
    class C:
        async def b(self):
            try: pass
            except E:
                with y:
                    def c(): pass
match z:
    case 1:
        def d(): pass
lambda: 0
"""
    found = [(each.name, each.line) for each in parse_functions(source)]
    assert found == [("a", 3), ("C.b", 6), ("C.b.c", 10), ("d", 13)]


def test_parents_stand_before_their_children():
    for function in parse_functions(Path(__file__).read_bytes()):
        assert function.parents[0] == -1
        for at, (parent, depth) in enumerate(zip(function.parents[1:], function.depths[1:], strict=True), start=1):
            assert 0 <= parent < at
            assert depth == function.depths[parent] + 1


def test_of_long_functions_the_first_nodes_are_kept():
    source = b"def f():\n" + b"    x = 1\n" * 50
    (whole,), (clipped,) = parse_functions(source), parse_functions(source, max_nodes=17)
    assert (whole.is_clipped, clipped.is_clipped, len(clipped.types)) == (False, True, 17)
    assert clipped.parents == whole.parents[:17]
    (exact,) = parse_functions(source, max_nodes=len(whole.types))
    assert not exact.is_clipped


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("get_value", ["get", "value"]),
        ("HTTPServer2", ["http", "server", "2"]),
        ("_toISO8601Date", ["to", "iso", "8601", "date"]),
        ("z1z2", ["z", "1", "z", "2"]),
        ("größe_2", ["größe", "2"]),
        ("__", []),
    ],
)
def test_names_are_cut_into_words(name, words):
    assert sub_tokens(name) == words


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\ndef f():\n    'größe'\n".encode("latin-1"),
        "\ufeffdef f():\n    'größe'\n".encode(),
        "def f():\r\n    'größe'\r\n".encode(),
    ],
)
def test_sources_are_decoded_as_python_does(source):
    (function,) = parse_functions(source)
    assert function.attributes[-1] == "größe"


@pytest.mark.parametrize(
    ("source", "reason", "line"),
    [
        (b"x = 1\ndef f(:\n", "invalid syntax", 2),
        ("def f():\n    'größe'\n".encode("latin-1"), "codec can't decode", None),
        (b"# coding: klingon\n", "klingon", None),
        (b"def f(): pass\0", "null bytes", None),
        (b"x = " + b"-" * 100_000 + b"1", "deep", None),
        (b"x = " + b"(" * 1000, "nested", 1),
        (b"print 'x'", "Missing parentheses", 1),
    ],
)
def test_what_is_not_python_is_told(source, reason, line):
    with pytest.raises(UnparsableError, match=reason) as told:
        parse_functions(source)
    assert line in (None, told.value.line)


@pytest.mark.parametrize("source", [b"", b"\n", b"x = 1"])
def test_sources_may_hold_no_functions(source):
    assert list(parse_functions(source)) == []


@pytest.mark.real_data
def test_trees_equal_those_of_a_set_built_elsewhere(data_root):
    """``attrs`` is one of the packages of pypi_ast; the version that was read there must be installed here."""
    folder, project = data_root / "pypi_ast", f"attrs=={metadata.version('attrs')}"
    files = find_ogb_files(folder)
    with gzip.open(folder / "mapping" / "graphidx2project.csv.gz", "rt") as lines:
        projects = [line.split(",")[1].strip() for line in lines][1:]
    if project not in projects:
        pytest.skip(f"pypi_ast does not hold {project}")
    first = projects.index(project)
    last = first + projects.count(project)

    def rows(field: str, start: int, end: int) -> list[list[int]]:
        with gzip.open(folder / "raw" / f"{field}.csv.gz", "rt") as lines:
            return [[int(number) for number in line.split(",")] for line in itertools.islice(lines, start, end)]

    sizes = [size for (size,) in rows("num-node-list", 0, last)]
    start, end = sum(sizes[:first]), sum(sizes)
    features, depths = rows("node-feat", start, end), [depth for (depth,) in rows("node_depth", start, end)]
    ends = rows("edge", start - first, end - last)
    with gzip.open(folder / "raw" / "graph-label.csv.gz", "rt") as lines:
        labels = [line.strip() for line in itertools.islice(lines, first, last)]

    types, attributes = (_words(files, f"mapping/{name}") for name in ("typeidx2type", "attridx2attr"))
    known, ours = set(attributes), set()
    for file in metadata.files("attrs") or ():
        for function in parse_functions(Path(str(file.locate())).read_bytes(), 10**9) if file.suffix == ".py" else ():
            words = ["__NONE__" if word is None else word for word in function.attributes]
            words = [word if word in known else "__UNK__" for word in words]
            label = " ".join(sub_tokens(function.name.rpartition(".")[2]))
            ours.add((label, *function.types, *words, *function.depths, *function.parents[1:]))
    nodes, edges = zip(features, depths, strict=True), iter(ends)
    for label, size in zip(labels, sizes[first:], strict=True):
        tree = list(itertools.islice(nodes, size))
        parents = [parent for parent, _ in itertools.islice(edges, size - 1)]
        columns = [types[t] for (t, _), _ in tree], [attributes[a] for (_, a), _ in tree], [depth for _, depth in tree]
        assert (label, *itertools.chain(*columns), *parents) in ours
