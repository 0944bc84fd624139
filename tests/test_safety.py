"""What comes from outside is data: nothing of it is run, and little of it cannot ask for much."""

import ast
import gzip
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from data import ogb_files
from safetensors.torch import load_file, save_file

import mnagt
from mnagt.data.readers.code import read_functions
from mnagt.data.readers.code_trees import UnparsableError, parse_functions
from mnagt.data.readers.graphml import read_graphml
from mnagt.data.readers.jsonl import read_jsonl
from mnagt.data.readers.node_edge_tables import read_node_edge_tables
from mnagt.data.readers.ogb import read_ogb
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.readers.text_table import read_table
from mnagt.errors import InputError, quote
from mnagt.experiments.ledger import Ledger
from mnagt.files import read_json
from mnagt.graphs.features import Columns, Features
from mnagt.inference.calibration import LEVELS, Calibration
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.inference.weights import fingerprints, load_tensors, save_tensors
from mnagt.models.registry import build_model, full_settings
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.recipes import read_recipe
from mnagt.settings import read_toml
from mnagt.tasks import MultiLabel, SingleLabel
from mnagt.training.run import resume, train

SOURCE = Path(mnagt.__file__).parent

# No way to run what was read

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "pty", "imp"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
FORBIDDEN_METHODS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "pandas.read_pickle", "os.system", "os.popen",
    "importlib.import_module", "runpy.run_path", "runpy.run_module", "subprocess.getoutput", "zipfile.extractall",
    "tarfile.open", "ssl._create_unverified_context", "xml.etree.ElementTree.parse", "tempfile.mktemp",
}  # fmt: skip
ALLOWED = {
    ("data/readers/molecule_reader.py", "subprocess.Popen"): "our own interpreter and our own file, no shell",
    ("inference/onnx_check.py", "subprocess.run"): "our own interpreter and our own file, no shell",
    ("inference/onnx_worker.py", "np.load"): "allow_pickle=False, from our own parent",
    ("experiments/ledger.py", "subprocess.run"): "git rev-parse HEAD, no shell, nothing of the user's in it",
    ("data/readers/rdkit_worker.py", "np.load"): "allow_pickle=False, from our own worker",
    ("lazy.py", "importlib.import_module"): "names of our own table, at first use",
    ("experiments/chemprop.py", "subprocess.run"): "the program that the user names, no shell",
    ("experiments/chemprop.py", "subprocess.Popen"): "the same, on a table that we write",
    ("plugins.py", "importlib.import_module"): "modules that the user names; never those that a file names",
    ("cli/allocator.py", "os.execve"): "the same command again, with a library of the system or of Ray",
}
"""Calls that would be dangerous with other arguments, and why these are not."""


def dotted(node: ast.AST) -> str:
    """``a.b.c``, as it is written."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{dotted(inner)}.{name}"
    return ""


def dangers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What a module does that could run what it reads, and in which line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((n.name, node.lineno) for n in names if n.name.split(".")[0] in FORBIDDEN_MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in FORBIDDEN_MODULES:
                yield module, node.lineno
            case ast.ImportFrom(module=str(module), names=names):
                yield from (
                    (f"{module}.{n.name}", node.lineno) for n in names if f"{module}.{n.name}" in FORBIDDEN_METHODS
                )
            case ast.Call(func=func, keywords=keywords):
                name = dotted(func)
                given = {k.arg: k.value.value for k in keywords if isinstance(k.value, ast.Constant)}
                is_shell = given.get("shell") or given.get("allow_pickle") or given.get("trust_remote_code")
                is_extracting = name.endswith((".extractall", ".extract"))
                is_guarded = name in ("np.load", "numpy.load") or name.startswith(
                    ("subprocess.", "os.exec", "os.spawn")
                )
                if name in FORBIDDEN_CALLS | FORBIDDEN_METHODS or is_shell or is_extracting or is_guarded:
                    yield name, node.lineno


def test_the_package_has_no_way_to_run_what_it_reads():
    used = set()
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for what, line in dangers(ast.parse(path.read_text(encoding="utf-8"))):
            assert (name, what) in ALLOWED, f"{name}, line {line}: {what}"
            used.add((name, what))
    assert used == set(ALLOWED), "an exception that is no longer needed"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from yaml import load", "import torch\ntorch.load(p)", "eval(x)", "exec(x)",
        "subprocess.run(x, shell=True)", "np.load(p)", "np.load(p, allow_pickle=True)", "os.system(x)",
        "archive.extractall(p)", "from os import system", "import joblib.numpy_pickle", "f(trust_remote_code=True)",
    ],
)  # fmt: skip
def test_such_ways_would_be_found(text):
    assert list(dangers(ast.parse(text)))


def test_what_is_called_alike_is_no_danger():
    assert not list(dangers(ast.parse("model.eval()\nre.compile(x)\njson.load(f)\nf(shell=False)\nast.parse(x)")))


# Records and settings

DEEP, LONG, HEX = "[" * 100_000, "9" * 5000, "0x" + "f" * 5000


@pytest.mark.parametrize("content", [DEEP, LONG, "[" * 2000 + "]" * 2000, f'{{"a": {LONG}}}', "\udcff"])
def test_json_that_python_chokes_on_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match="not JSON"):
        read_json(tmp_path / "run.json")
    (tmp_path / "trials.jsonl").write_text(f"{content}\n{{}}\n", errors="surrogateescape")
    with pytest.raises(InputError, match="line 1: not JSON"):
        list(Ledger(tmp_path / "trials.jsonl").records())


@pytest.mark.parametrize("content", [f"a = {DEEP}", f"a = {LONG}", "a = 1\na = 2", "\udcff"])
def test_toml_that_python_chokes_on_is_refused(tmp_path, content):
    (tmp_path / "recipe.toml").write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match="not TOML"):
        read_toml(tmp_path / "recipe.toml")


@pytest.mark.parametrize("content", [f"[train]\nepochs = {HEX}", f"[train]\nlr = {HEX}", f"model = '{'x' * 99_999}'"])
def test_huge_settings_are_refused_in_few_words(tmp_path, content):
    (tmp_path / "recipe.toml").write_text(content)
    with pytest.raises(InputError, match=r"recipe.toml: .*") as refusal:
        read_recipe(tmp_path / "recipe.toml")
    assert len(str(refusal.value)) < 800 + len(str(tmp_path))


def test_records_are_read_up_to_a_size(tmp_path, monkeypatch):
    for name, read in (("run.json", read_json), ("a.toml", read_toml), ("a.py", read_functions)):
        (tmp_path / name).write_text("# " + "x" * 100)
        monkeypatch.setenv("MNAGT_LARGEST_FILE", "99")
        with pytest.raises(InputError, match="102 bytes, and up to 99 are read"):
            read(tmp_path / name)


def test_whatever_it_is_can_be_shown():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert quote(deep) == "a huge list"
    assert quote(1 << 100_000) == "a huge int"
    assert quote("a\nb") == r"'a\nb'"
    assert len(quote("x" * 1000)) < 70


# Graphs of one's own


def test_what_rdkit_trips_over_is_left_out(tmp_path):
    pytest.importorskip("rdkit")
    found = read_smiles(["CCO", "[13CH444]"])
    assert [(row.row, row.reason) for row in found.refused] == [(1, "no molecule")]


def test_names_of_columns_are_never_csv_of_their_own(tmp_path):
    """The head of OGB's mapping is only asked for names."""
    broken = ogb_files.MOLECULES | {"mapping/mol": "mol_id,wo\rrks,kills,smiles\n"}
    task = read_ogb(ogb_files.folder(tmp_path / "small", broken)).task
    assert isinstance(task, MultiLabel)
    assert task.names == ("target_0", "target_1")


def test_entities_do_not_grow(tmp_path):
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    text = f'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY l0 "lol">{laughs}]><graphml>&l9;</graphml>'
    (tmp_path / "g.graphml").write_text(text)
    with pytest.raises(InputError, match="a document type is not read"):
        read_graphml(tmp_path / "g.graphml")
    (tmp_path / "g.graphml").write_text("<!DOCTYPE a SYSTEM 'file:///etc/passwd'><graphml/>")
    with pytest.raises(InputError, match="a document type is not read"):
        read_graphml(tmp_path / "g.graphml")


def test_a_hundred_thousand_lines_of_text_are_joined_in_time(tmp_path):
    """Text came line by line and was copied for each: half a minute for these, days for a large file."""
    around = "&#10;x" * 300_000
    (tmp_path / "g.graphml").write_text(f"<graphml><graph>{around}<node id='a'/></graph></graphml>")
    start = time.process_time()
    assert read_graphml(tmp_path / "g.graphml").node_ends == [1]
    assert time.process_time() - start < 5


def test_elements_nested_without_end_are_no_trouble(tmp_path):
    (tmp_path / "g.graphml").write_text(
        "<graphml><graph><node id='a'/>" + "<a>" * 50_000 + "</a>" * 50_000 + "</graph></graphml>"
    )
    assert read_graphml(tmp_path / "g.graphml").node_ends == [1]


def test_a_few_bytes_cannot_ask_for_a_billion_nodes(tmp_path):
    (tmp_path / "g.jsonl").write_text('{"nodes": 2000000000}\n')
    with pytest.raises(InputError, match=r"line 1, nodes: more than the file has bytes"):
        read_jsonl(tmp_path / "g.jsonl")
    (tmp_path / "g.jsonl").write_text('{"nodes": 600000}\n' * 5)
    with pytest.raises(InputError, match=r"line 2, nodes: more than the file has bytes"):
        read_jsonl(tmp_path / "g.jsonl")


def test_columns_that_are_nearly_all_empty_are_refused(tmp_path):
    """A hundred thousand nodes with a column of their own each would make a table of ten billion."""
    nodes = [{f"c{i}": 1} for i in range(5000)]
    (tmp_path / "g.jsonl").write_text(json.dumps({"nodes": nodes}))
    with pytest.raises(InputError, match=r"g.jsonl: [\d,]+ nodes and [\d,]+ columns so far, nearly all empty"):
        read_jsonl(tmp_path / "g.jsonl")


@pytest.mark.parametrize("inner", [[[1]], [{"a": 1}], [10**400, 1.5]])
def test_odd_things_in_lists_are_refused(tmp_path, inner):
    (tmp_path / "g.jsonl").write_text(json.dumps({"nodes": [{"v": inner}], "y": 1}))
    with pytest.raises(InputError, match=r"nodes\[0\]\.v"):
        read_jsonl(tmp_path / "g.jsonl").pack(targets=())


def test_what_is_nested_too_deeply_to_show_is_refused(tmp_path):
    for depth in range(880, 1000, 7):
        (tmp_path / "g.jsonl").write_text('{"nodes": ' + "[" * depth + "]" * depth + "}")
        with pytest.raises(InputError, match="line 1"):
            read_jsonl(tmp_path / "g.jsonl")


def test_a_hundred_thousand_columns_are_read_in_time(tmp_path):
    (tmp_path / "m.csv").write_text(",".join(f"c{i}" for i in range(100_000)) + "\n")
    start = time.process_time()
    assert len(read_table(tmp_path / "m.csv").columns) == 100_000
    assert time.process_time() - start < 5


@pytest.fixture
def triple(tmp_path) -> Path:
    (tmp_path / "graphs.csv").write_text("graph,y\n0,1\n1,0\n")
    (tmp_path / "edges.csv").write_text("graph,source,target\n0,0,1\n")
    return tmp_path


def test_a_parquet_bomb_is_refused(triple):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    zeros = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1_000_000, "int32"), ["0"])
    many = pyarrow.table({f"c{i}": pyarrow.chunked_array([zeros] * 10) for i in range(10)})
    parquet.write_table(many, triple / "nodes.parquet")
    assert (triple / "nodes.parquet").stat().st_size < 1_000_000
    with pytest.raises(InputError, match=r"bytes hold 100,000,000 values"):
        read_node_edge_tables(triple)


def test_text_of_a_parquet_file_that_is_none_is_refused(triple):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    wrong = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, *map(pyarrow.py_buffer, (b"\0\0\0\0\1\0\0\0", b"\xff"))]
    )
    parquet.write_table(pyarrow.table({"graph": wrong}), triple / "nodes.parquet")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read_node_edge_tables(triple)


# Code is read, never run

NESTED = (
    "-" * 100_000 + "1", "(" * 5000, "a" + ".a" * 50_000, "a" + "()" * 50_000, "1" + "+1" * 50_000,
    "x = " * 20_000 + "1", "not " * 50_000 + "1", "lambda: " * 20_000 + "1", "if 1: pass\n" + "elif 1: pass\n" * 20_000,
    "f'{" * 200, "[" * 199 + "]" * 199, "@a\n" * 20_000 + "def f(): 0", "1 if 1 else " * 20_000 + "1",
    "a[" * 150 + "]" * 150,
)  # fmt: skip


@pytest.mark.parametrize("source", NESTED, ids=lambda source: source[:8])
def test_deep_nesting_ends_no_process(source):
    with suppress(UnparsableError):
        list(parse_functions(source.encode()))


def test_code_is_not_run(tmp_path):
    mark = tmp_path / "run"
    source = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n@pathlib.Path({str(mark)!r}).touch\ndef f(): 0"
    assert len(list(parse_functions(source.encode()))) == 1
    assert not mark.exists()


def test_huge_numbers_and_texts_in_code_are_kept_as_text():
    (found,) = parse_functions(f"def f(): return {HEX}, {'1' * 4000}, '{'x' * 99_999}'".encode())
    assert HEX in found.attributes


# Model folders


@pytest.fixture
def folder(tmp_path) -> Path:
    features, task = Features(Columns((3,)), Columns()), SingleLabel(("a", "b"))
    settings = {"dim": 4, "depth": 1}
    trained = TrainedModel(build_model("gin", settings, features, 2), task, "gin", full_settings("gin", settings))
    trained.save(tmp_path / "model")
    return tmp_path / "model"


def signed(folder: Path) -> Path:
    """With fingerprints that fit: whoever sends a folder can work them out."""
    weights, _ = load_tensors(folder / "model.safetensors")
    save_tensors(folder / "model.safetensors", weights, fingerprints(folder / "config.json", weights))
    return folder


@pytest.mark.parametrize(
    ("model", "settings", "told"),
    [
        ("gin", {"depth": 2**39}, "depth must be at most 1000"),
        ("gin", {"depth": 1000}, "ask for more weights than the file holds"),
        ("mnagt", {"max_hop": 999, "depth": 999}, "ask for more weights than the file holds"),
        ("set2set", {"steps": 10**9}, "steps must be at most 1000"),
        ("gin", {"dim": 2**39}, "config.json|has shape"),
    ],
)
def test_settings_cannot_ask_for_a_model_larger_than_its_file(folder, model, settings, told):
    content = json.loads((folder / "config.json").read_text())
    content["model"] = {"name": model, "settings": settings}
    (folder / "config.json").write_text(json.dumps(content))
    start = time.process_time()
    with pytest.raises(InputError, match=told):
        load_model(signed(folder))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("part", "content"), [("vocabularies", {"node_labels/0": [[]]}), ("columns", {"node_labels": 3})]
)
def test_names_that_are_none_are_refused(folder, part, content):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {part: content}))
    with pytest.raises(InputError, match=r"config.json: it is damaged"):
        load_model(signed(folder))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool])
def test_weights_of_another_kind_are_refused(folder, dtype):
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor.to(dtype) for name, tensor in weights.items()}, folder / "model.safetensors")
    with pytest.raises(InputError, match="holds torch"):
        load_model(signed(folder))


def test_a_model_without_its_note_is_refused(folder):
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors: .*not written by mnagt.*train again"):
        load_model(folder)


def test_a_model_of_a_newer_version_is_refused_by_name(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mnagt": "99.1.0"}))
    with pytest.raises(InputError, match=r"config\.json: saved by mnagt 99\.1\.0, and this is .*; upgrade mnagt"):
        load_model(signed(folder))


def test_a_folder_where_a_file_should_be_is_told(folder):
    (folder / "last.safetensors").mkdir()
    with pytest.raises(InputError, match="damaged or not a checkpoint"):
        load_tensors(folder / "last.safetensors")


@pytest.mark.parametrize(
    "change", [{"graphs": float("inf")}, {"thresholds": [[float("nan")] * LEVELS] * 2}, {"temperature": "9" * 5000}]
)
def test_a_calibration_of_odd_numbers_is_refused(change):
    good = {"temperature": 1.0, "graphs": 3, "thresholds": [[0.5] * LEVELS] * 2}
    task = SingleLabel(("a", "b"))
    assert Calibration.from_dict(good, task, "here").graphs == 3
    with pytest.raises(InputError, match="here: damaged"):
        Calibration.from_dict(good | change, task, "here")


def test_a_note_nested_without_end_is_refused(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors", metadata={"note": DEEP})
    with pytest.raises(InputError, match="damaged or not a checkpoint"):
        load_tensors(tmp_path / "x.safetensors")


def test_a_small_gzip_of_json_is_read_like_the_file(tmp_path):
    """The guards leave good files alone."""
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress(b'{"nodes": 3, "edges": [[0, 1]]}\n' * 50))
    assert read_jsonl(tmp_path / "g.jsonl.gz").node_ends == list(range(3, 153, 3))


# Runs to go on with


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    config = RunConfig("MUTAG", "gcn", {"dim": 4, "depth": 1}, TrainConfig(epochs=1, batch_size=188), device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnagt.training.run.remove_checkpoint", lambda path: None)
        train(config, out)
    return out


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, note: tensors.pop(next(name for name in tensors if name.startswith("best/"))),
        lambda tensors, note: note.update(epoch="1"),
        lambda tensors, note: note.update(epoch=7),
        lambda tensors, note: note.update(history={}),
        lambda tensors, note: tensors.update({"optimizer/0/exp_avg": torch.zeros(3, 2)}),
        lambda tensors, note: tensors.update({"optimizer/99/exp_avg": torch.zeros(3, 2)}),
    ],
    ids=["best", "epoch", "epochs", "history", "optimizer", "weights"],
)
def test_a_checkpoint_that_does_not_fit_the_run_is_refused(finished, tmp_path, change):
    out = shutil.copytree(finished, tmp_path / "run")
    tensors, note = load_tensors(out / "last.safetensors")
    change(tensors, note)
    save_tensors(out / "last.safetensors", tensors, note)
    with pytest.raises(InputError, match=r"last.safetensors: (not a checkpoint of this run|of another model)"):
        resume(out)
