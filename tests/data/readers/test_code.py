import csv
import gzip
import io
import platform
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnagt.cli import main
from mnagt.data.readers.code import CodeConfig, assign_parts, build_code, read_functions
from mnagt.data.readers.code_trees import encode_functions
from mnagt.data.registry import load_dataset
from mnagt.data.splits import PARTS
from mnagt.errors import InputError
from mnagt.tasks import SubTokens, word_key


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def lines(folder: Path, field: str) -> list[str]:
    return gzip.decompress((folder / f"{field}.csv.gz").read_bytes()).decode().splitlines()


def words(folder: Path, field: str) -> list[str]:
    text = gzip.decompress((folder / "mapping" / f"{field}.csv.gz").read_bytes()).decode()
    return [word for _, word in csv.reader(io.StringIO(text, newline=""))][1:]


def projects(folder: Path) -> dict[str, set[str]]:
    """The projects of each part."""
    of_graph = words(folder, "graphidx2project")
    return {part: {of_graph[int(line)] for line in lines(folder, f"split/project/{part}")} for part in PARTS}


LIBRARY = {
    "shapes/__init__.py": "def area(w, h):\n    return w * h\n",
    "shapes/round.py": "class Disc:\n    def area(self):\n        return 3 * self.r ** 2\n\n    def __init__(self, r):\n        self.r = r\n",  # noqa: E501
    "texts.py": "def joinLines(rows):\n    return '\\n'.join(rows) + ',\"\\r'\n\n\ndef _(): pass\n",
    "numbers2/more.py": "def is_even(n):\n    return n % 2 == 0\n",
}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return written(tmp_path / "library", LIBRARY)


def test_a_set_holds_every_function_whose_name_says_something(library, tmp_path):
    report = build_code([library], tmp_path / "set")
    assert (report.files, sum(report.counts.values()), report.counts["unnamed"], report.graphs, report.projects) == (
        4,
        6,
        2,
        4,
        3,
    )
    dataset = load_dataset(tmp_path / "set")
    assert isinstance(dataset.task, SubTokens)
    assert set(dataset.task.words) == {"area", "join", "lines", "is", "even"}
    asked = [[word_key(word) for word in label.split()] for label in lines(tmp_path / "set", "raw/graph-label")]
    assert [[key for key in row if key >= 0] for row in dataset.targets.tolist()] == asked


def test_files_are_those_of_the_layout(library, tmp_path):
    build_code([library], tmp_path / "set")
    found = sorted(str(path.relative_to(tmp_path / "set")) for path in (tmp_path / "set").rglob("*.*"))
    mapping = [f"mapping/{name}.csv.gz" for name in ("attridx2attr", "graphidx2project", "typeidx2type")]
    raw = ("edge", "graph-label", "node-feat", "node_depth", "node_dfs_order", "node_is_attributed")
    raw = [f"raw/{name}.csv.gz" for name in (*raw, "num-edge-list", "num-node-list")]
    assert found == ["RELEASE_v1.txt", *mapping, *raw, *(f"split/project/{part}.csv.gz" for part in sorted(PARTS))]


@pytest.mark.real_data
def test_layout_and_heads_are_those_of_a_set_built_elsewhere(library, tmp_path, data_root):
    build_code([library], tmp_path / "set")
    ours, theirs = (
        {str(path.relative_to(folder)): path for path in folder.rglob("*.*")}
        for folder in (tmp_path / "set", data_root / "pypi_ast")
    )
    assert ours.keys() == theirs.keys()
    for name in ours:
        if name.endswith(".gz"):
            with gzip.open(ours[name], "rt") as one, gzip.open(theirs[name], "rt") as other:
                first, second = next(one), next(other)
            assert first == second if name.startswith("mapping") else first.count(",") == second.count(",")


def test_the_same_sources_give_the_same_bytes(library, tmp_path):
    for name in ("one", "two"):
        build_code([library], tmp_path / name)
    for path in (tmp_path / "one").rglob("*.gz"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_vocabularies_come_from_the_training_part(tmp_path):
    files = {f"{name}.py": f"def f{name}(only_{name}):\n    return only_{name}\n" for name in "abcdefghij"}
    build_code([written(tmp_path / "src", files)], tmp_path / "set")
    train = projects(tmp_path / "set")["train"]
    assert len(train) == 8
    attributes = words(tmp_path / "set", "attridx2attr")
    assert attributes == ["__NONE__", "__UNK__", "_mask_", *(f"only_{name}" for name in sorted(train))]
    build_code([tmp_path / "src"], tmp_path / "small", CodeConfig(attributes=5))
    assert words(tmp_path / "small", "attridx2attr") == attributes[:5]


def test_words_come_back_as_they_were(tmp_path):
    strange = ["a,b", 'say "x"', "\r", "\r\n", "\n", "", " ", "nul\0", "nan", "ß"]
    body = "".join(f"    g({word!r}, {word!r})\n" for word in strange)
    files = {f"{name}.py": f"def f_{name}():\n{body}" for name in "abc"}
    build_code([written(tmp_path / "src", files)], tmp_path / "set")
    assert set(strange) < set(load_dataset(tmp_path / "set").vocabularies["node_labels/1"])


def test_copies_are_left_out(tmp_path):
    entry = "def entry():\n    'Doc.'\n    return Info({!r}, {})\n"
    files = {
        "a.py": entry.format("a", 1),
        "b.py": entry.format("a", 1),  # the same
        "c.py": entry.format("c", 2),  # but for its constants
        "d.py": entry.format("a", 1).replace("Info", "Other"),
        "e.py": entry.format("a", 1).replace("entry", "other"),
        "f.py": entry.format("a", 1).replace("entry", "Entry"),  # the same words
    }
    report = build_code([written(tmp_path / "src", files)], tmp_path / "set")
    assert (report.counts, report.graphs) == ({"copies": 2, "near_copies": 1, "kept": 3}, 3)
    assert words(tmp_path / "set", "graphidx2project") == ["a", "d", "e"]


def test_large_graphs_are_clipped_and_counted(library, tmp_path):
    report = build_code([library], tmp_path / "set", CodeConfig(max_nodes=13))
    whole = build_code([library], tmp_path / "whole")
    sizes, whole_sizes = (load_dataset(tmp_path / name).sizes for name in ("set", "whole"))
    assert (report.clipped, whole.clipped) == (2, 0)
    assert int((whole_sizes > 13).sum()) == 2
    assert torch.equal(sizes, whole_sizes.clamp(max=13))


def test_files_that_cannot_be_read_are_counted_and_told(library, tmp_path):
    written(
        library,
        {
            "bad/syntax.py": "x = 1\ndef f(:\n",
            "bad/zero.py": b"x\0",
            "bad/latin.py": "# coding: latin-1\ndef größe(): return 1\n".encode("latin-1"),
            "bad/broken.py": "def größe(): return 1\n".encode("latin-1"),
            "bad/empty.py": "",
            "bad/notes.txt": "def f(:",
            ".hidden/x.py": "def f(:",
        },
    )
    (library / "bad" / "gone.py").symlink_to(library / "nothing.py")
    report = build_code([library], tmp_path / "set")
    assert (report.files, report.graphs) == (4 + 6, 4 + 1)
    told = [str(each).removeprefix(f"{library}/bad/") for each in report.skipped]
    assert [each.split(":")[0] for each in told] == ["broken.py, line 1", "gone.py", "syntax.py, line 2", "zero.py"]


PACKAGE = {"__init__.py": "", "a.py": "def f(): 1\n", "sub/b.py": "def g(): 1\n", "sub/c.py": "def h(): 1\n"}
MODULE = {"__init__.py": "", "m.py": "def {0}_m(): 1\n", "n.py": "def {0}_n(): 1\n"}


@pytest.mark.parametrize(
    ("packages", "paths", "expected"),
    [
        (["one", "two", "three"], ["one", "two", "three"], {"one", "two", "three"}),
        (["one", "two", "three"], ["."], {"one", "two", "three"}),
        (["one", "two"], ["one", "two"], {"one.m", "one.n", "two.m", "two.n"}),
        (["one", "two"], ["."], {"one.m", "one.n", "two.m", "two.n"}),
        ([], ["pack"], {"a", "sub.b", "sub.c"}),
        ([], ["pack/a.py", "pack/sub"], {"a.a", "sub.b", "sub.c"}),
    ],
)
def test_projects_are_as_coarse_as_can_be_divided(tmp_path, packages, paths, expected):
    for name in packages:
        files = {f"{name}/{file}": text.format(name) for file, text in MODULE.items()}
        written(tmp_path / "src", files)
    if not packages:
        written(tmp_path / "src" / "pack", PACKAGE)
    build_code([tmp_path / "src" / path for path in paths], tmp_path / "set")
    assert set(words(tmp_path / "set", "graphidx2project")) == expected


@given(st.dictionaries(st.text("abcxyz", min_size=1), st.integers(1, 50), min_size=3), st.integers(0, 9))
def test_projects_are_divided_whole_and_no_part_is_empty(sizes, seed):
    part_of = assign_parts(sizes, seed)
    assert part_of == assign_parts(dict(reversed(sizes.items())), seed)
    assert part_of.keys() == sizes.keys()
    assert set(part_of.values()) == set(PARTS)


def test_many_projects_are_divided_by_shares():
    sizes = {str(i): 1 + i % 7 for i in range(300)}
    parts = [{name for name, part in assign_parts(sizes, seed).items() if part == "test"} for seed in (0, 1)]
    assert parts[0] != parts[1]
    for names in parts:
        assert sum(sizes[name] for name in names) == pytest.approx(0.1 * sum(sizes.values()), abs=7)


def test_one_large_project_trains():
    assert assign_parts({"a": 5, "giant": 900, "b": 40, "c": 55}, 0)["giant"] == "train"


@pytest.mark.parametrize(
    ("files", "paths", "message"),
    [
        ({}, ["gone"], "gone: no such file or folder"),
        ({"x/readme.txt": ""}, ["x"], "x: no Python files there"),
        ({"x/a.py": "y = 1\n"}, ["x"], "no functions to name; Python files: 1$"),
        ({"x/a.py": "def f(:\n"}, ["x"], r"not read: 1, the first: .*a.py, line 1: "),
        ({"a.py": "def f(): 1\n", "b.py": "def g(): 1\n"}, ["a.py", "b.py"], "modules with functions to name: 2;"),
    ],
)
def test_sources_without_anything_to_learn_are_refused(tmp_path, files, paths, message):
    written(tmp_path, files)
    with pytest.raises(InputError, match=message):
        build_code([tmp_path / path for path in paths], tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_nothing_is_written_over_and_nothing_half_written(library, tmp_path):
    written(tmp_path, {"there/x": "", "file": ""})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there: is there already"):
        build_code([library], tmp_path / "there")
    with pytest.raises(InputError, match="there is a file where its folder would be"):
        build_code([library], tmp_path / "file" / "set")
    build_code([library], tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "library", "there"]


@pytest.mark.parametrize("field", ["max_nodes", "attributes"])
def test_settings_out_of_range_are_refused(field):
    with pytest.raises(InputError, match=f"{field} must be at least 3, got 2"):
        CodeConfig(**{field: 2})


def test_functions_read_for_naming_are_the_graphs_of_the_set(tmp_path):
    source = Path(__file__)
    files = {"a.py": source.read_bytes(), "b.py": "def f(x): return x\n", "c.py": "def g(y): return y\n"}
    build_code([written(tmp_path / "src", files)], tmp_path / "set")
    dataset = load_dataset(tmp_path / "set")
    types, attributes = (dataset.vocabularies[f"node_labels/{column}"] for column in (0, 1))
    found = read_functions(source)
    ours = encode_functions(found, types, attributes)
    of_set = torch.tensor([i for i, name in enumerate(words(tmp_path / "set", "graphidx2project")) if name == "a"])
    assert len(found) == len(of_set) > 20
    one, other = ours.batch(torch.arange(len(found))), dataset.batch(of_set)
    assert ours.features == dataset.features
    for field in ("node_ptr", "in_ptr", "source", "node_labels", "edge_labels"):
        assert torch.equal(getattr(one, field).long(), getattr(other, field).long()), field


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that has learned some functions by heart, and the file with them."""
    folder = tmp_path_factory.mktemp("named")
    verbs, things = ("open", "close", "count", "merge"), ("file", "tree", "queue", "page")
    known = [
        f"def {verb}_{thing}({thing}, at={i}):\n" + f"    {thing}.{verb}(at)\n" * (1 + i)
        for i, verb in enumerate(verbs)
        for thing in things
    ]
    alike = [text + "    return at\n" for text in known[::5]]
    files = {"known.py": known, "valid.py": alike[:2], "test.py": alike[2:]}
    sources = written(folder / "src", {name: "\n\n".join(texts) for name, texts in files.items()})
    build_code([sources], folder / "set")
    options = ["--model", "gin", "--dim", "48", "--epochs", "30", "--batch-size", "8", "--lr", "0.005"]
    assert main(["train", str(folder / "set"), "--out", str(folder / "run"), "--device", "cpu", *options]) == 0
    return folder / "run", sources / "known.py"


def test_what_was_learned_is_suggested(named, tmp_path, capsys):
    run, source = named
    assert main(["predict", str(run), str(source), "--device", "cpu", "--out", str(tmp_path / "names.csv")]) == 0
    with (tmp_path / "names.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["function"] for row in rows] == [each.name for each in read_functions(source)]
    assert [int(row["line"]) for row in rows] == [each.line for each in read_functions(source)]
    assert sum(row["function"] == row["name 1"] for row in rows) >= 14
    for row in rows:
        likely = [float(row[f"p({place})"]) for place in range(1, 6)]
        assert likely == sorted(likely, reverse=True)
        assert 0 < likely[-1] < likely[0] <= 1
        assert sum(likely) <= 1 + 1e-5


def test_suggestions_are_printed_as_a_table(named, capsys):
    run, source = named
    assert main(["predict", str(run), str(source), "--device", "cpu", "--graphs", "3,0"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["line", "function", "1", "2", "3", "4", "5", "distance"]
    assert [row.split()[1] for row in rows] == ["open_page", "open_file"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "no functions in it"),
        (b"x\ndef f(:\n", "line 2: invalid syntax; it is not Python 3."),
        (None, "no such file"),
    ],
)
def test_files_without_functions_are_refused(named, tmp_path, capsys, source, message):
    if source is not None:
        (tmp_path / "x.py").write_bytes(source)
    assert main(["predict", str(named[0]), str(tmp_path / "x.py"), "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_other_models_do_not_name_functions(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["train", "MUTAG", "--model", "gin", "--epochs", "1", "--out", run, "--device", "cpu"]) == 0
    assert main(["predict", run, __file__, "--device", "cpu"]) == 2
    assert "this one was trained on MUTAG; try: mnagt train stdlib" in capsys.readouterr().err


def test_a_set_is_made_on_the_command_line(library, tmp_path, capsys):
    written(library, {"bad.py": "def f(:"})
    assert main(["data", "code", str(library), "--out", str(tmp_path / "set"), "--max-nodes", "13"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("4 graphs of 3 projects (train 2, valid 1, test 1), 2 of them clipped; 5 files held 6 ")
    assert f"not read: {library / 'bad.py'}, line 1: " in said.err
    assert len(load_dataset(tmp_path / "set")) == 4


def test_the_standard_library_is_a_data_set(monkeypatch):
    dataset = load_dataset("stdlib")
    assert dataset.name == f"stdlib-{platform.python_version()}"
    assert len(dataset) > 8000
    assert dataset.official is not None
    shares = dataset.official.long().bincount() / len(dataset)
    assert shares.tolist() == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    task = dataset.task
    assert isinstance(task, SubTokens)
    assert {"get", "set", "read"} < set(task.words)
    codecs = word_key("getregentry")
    assert int((dataset.targets[:, 0] == codecs).sum()) < 20
    monkeypatch.setattr("mnagt.data.readers.code.read_stdlib", lambda: pytest.fail("made again"))
    assert len(load_dataset("stdlib")) == len(dataset)
