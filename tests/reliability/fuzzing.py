"""Broken inputs for every reader. Each must be read consistently, or refused in a line that says what is wrong.

An input is told by its reader and a number: ``READERS["tu"].attempt(7, scratch)`` makes and reads the same one always.
Tests take a few of each kind; ``tests/reliability/fuzz.py`` takes 200,000 and watches for crashes, hangs and memory.
"""

import asyncio
import gzip
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from data import ogb_files, tu_files

from mnagt.data.cache import load_packed, save_packed
from mnagt.data.memmap import open_packed, write_packed
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.code import read_functions
from mnagt.data.readers.code_trees import MASK
from mnagt.data.readers.graphml import read_graphml
from mnagt.data.readers.jsonl import read_jsonl
from mnagt.data.readers.molecule_table import read_molecules
from mnagt.data.readers.node_edge_tables import read_node_edge_tables
from mnagt.data.readers.ogb import read_ogb
from mnagt.data.readers.smiles import FEATURES
from mnagt.data.readers.tu import read_tu
from mnagt.data.registry import EMBEDDED, load_dataset
from mnagt.data.splits import official_split, read_split
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger
from mnagt.experiments.tune_space import search_space
from mnagt.files import read_json
from mnagt.graphs.features import Columns, Features
from mnagt.inference.calibration import LEVELS, Calibration
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.inference.weights import fingerprints, load_tensors, save_tensors
from mnagt.models.registry import build_model, full_settings
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.recipes import read_recipe
from mnagt.serve.callers import read_callers
from mnagt.tasks import UNKNOWN, SingleLabel, SubTokens, Task
from mnagt.training.progress import Reporter
from mnagt.training.run import resume, train

LONGEST_MESSAGE = 1000
"""Characters of a refusal, besides the path: nobody reads more."""

# Ways to break bytes

NUMBERS = ("0", "1", "-1", "8", "9", "2147483648", "99999999", "100000000", "9223372036854775808", "-9" * 30)
ODDITIES = (
    *NUMBERS, "9" * 5000, "1e400", "1e308", "-1e-400", "nan", "NaN", "inf", "Infinity", "1_0", "0x1", "0x" + "f" * 5000,
    "", " ", ",", "\n", "\r", "\0", "é", "１", "1.5", "null", "true", "[]", "{}", '""', '"x"', "'", '"""', "[[0, 1]]",
    '{"a": 1}', "\ud800", "🙂", "[" * 300, "[" * 980, "[" * 100_000, '{"a":' * 970, "<a>" * 3000, "(" * 150, "-" * 9000,
    "x" * 70_000, "../../x", "/", "%", "C1CC1", "[H]", "&amp;", "&x;", "<!DOCTYPE a [<!ENTITY x 'y'>]>",
    "a" + ".a" * 5000,
    "1979-05-27", "\\u0000", "\ufeff", "a,b,c,d", "-0", "1" + "0" * 400,
)  # fmt: skip
_TOKEN = re.compile(rb"[A-Za-z_]+|[0-9.]+|[ \t]+|.", re.DOTALL)


def flipped(drawn: Random, content: bytes) -> bytes:
    at = drawn.randrange(len(content))
    return content[:at] + bytes([content[at] ^ drawn.randint(1, 255)]) + content[at + 1 :]


def truncated(drawn: Random, content: bytes) -> bytes:
    return content[: drawn.randint(0, len(content))]


def _part(drawn: Random, content: bytes) -> tuple[int, int]:
    """Where a part begins and ends; half of the time a few bytes."""
    start = drawn.randint(0, len(content))
    return start, min(len(content), start + drawn.randint(1, drawn.choice((8, len(content)))))


def part_removed(drawn: Random, content: bytes) -> bytes:
    start, end = _part(drawn, content)
    return content[:start] + content[end:]


def part_repeated(drawn: Random, content: bytes) -> bytes:
    start, end = _part(drawn, content)
    return content[:end] + content[start:end] * drawn.choice((1, 2, 50)) + content[end:]


def replaced_by_anything(drawn: Random, content: bytes) -> bytes:
    return drawn.randbytes(drawn.randint(0, 60))


def line_deleted(drawn: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[drawn.randrange(len(lines))]
    return b"".join(lines)


def line_doubled(drawn: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(drawn.randint(0, len(lines)), drawn.choice(lines))
    return b"".join(lines)


def lines_swapped(drawn: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    drawn.shuffle(lines)
    return b"".join(lines)


def columns_swapped(drawn: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    at = drawn.randrange(len(lines))
    lines[at] = b",".join(reversed(lines[at].strip().split(b","))) + b"\n"
    return b"".join(lines)


def field_replaced(drawn: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    at = drawn.randrange(len(lines))
    fields = lines[at].strip().split(b",")
    fields[drawn.randrange(len(fields))] = _odd(drawn)
    lines[at] = b",".join(fields) + b"\n"
    return b"".join(lines)


def token_changed(drawn: Random, content: bytes) -> bytes:
    """A word, number or sign gone, twice, instead of another, or odd."""
    tokens = _TOKEN.findall(content)
    at = drawn.randrange(len(tokens))
    match drawn.randrange(4):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, tokens[at])
        case 2:
            tokens[at] = drawn.choice(tokens)
        case 3:
            tokens[at] = _odd(drawn)
    return b"".join(tokens)


def json_changed(drawn: Random, content: bytes) -> bytes:
    """Something in a line of JSON, or in all of it, gone or odd; what is left is JSON."""
    for texts in ([content], content.splitlines()):
        try:
            lines = [json.loads(text) for text in texts]
            break
        except (ValueError, RecursionError):
            continue
    else:
        return token_changed(drawn, content)
    inner = {"": drawn.choice(lines)}
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [inner]
    while stack:
        each = stack.pop()
        pairs = list(each.items() if isinstance(each, dict) else enumerate(each))
        places += [(each, key) for key, _ in pairs]
        stack += [value for _, value in pairs if isinstance(value, dict | list)]
    around, key = drawn.choice(places[1:] or places)
    if drawn.randrange(4) == 0:
        del around[key]
    else:
        around[key] = drawn.choice(
            [
                *(None, True, -1, 0, 3, 2**31 - 1, 2**31, 2**62, 10**30, 10**4000, 1.5, 1e308),
                *(
                    float("nan"),
                    float("inf"),
                    "",
                    "x",
                    "\ud800",
                    "\0",
                    [],
                    {},
                    [[]],
                    [None],
                    {"a": 1},
                    [0] * 99,
                    "y" * 5000,
                ),
            ]
        )
    return "\n".join(json.dumps(line) for line in lines).encode()


def _odd(drawn: Random) -> bytes:
    return drawn.choice(ODDITIES).encode(errors="surrogatepass")


BYTEWISE = (flipped, truncated, part_removed, part_repeated, replaced_by_anything)
MUTATIONS = (
    *BYTEWISE,
    line_deleted,
    line_doubled,
    lines_swapped,
    columns_swapped,
    field_replaced,
    token_changed,
    token_changed,
)


def mutated(drawn: Random, content: bytes, ways: tuple[Callable[[Random, bytes], bytes], ...] = MUTATIONS) -> bytes:
    """The content broken in one way or more."""
    for _ in range(drawn.choice((1, 1, 1, 2, 3))):
        if content:
            content = drawn.choice(ways)(drawn, content)
    return content


def some_mutated(
    drawn: Random, files: Mapping[str, bytes], ways: tuple[Callable[[Random, bytes], bytes], ...] = MUTATIONS
) -> dict[str, bytes]:
    """The files, one or two of them broken."""
    broken = dict(files)
    for _ in range(drawn.choice((1, 1, 1, 2))):
        name = drawn.choice(sorted(broken))
        broken[name] = mutated(drawn, broken[name], ways)
    return broken


# What must hold of what was read


def assert_consistent(dataset: PackedDataset) -> None:
    sizes, edges, nodes = dataset.sizes, len(dataset.source), int(dataset.node_ptr[-1])
    assert len(dataset) >= 1
    assert bool((sizes >= 1).all())
    assert len(dataset.targets) == len(dataset)
    assert int(dataset.edge_ptr[-1]) == int(dataset.in_degree.sum()) == edges
    assert len(dataset.in_degree) == nodes
    for kind, rows in (("node", nodes), ("edge", edges)):
        labels, values = getattr(dataset, f"{kind}_labels"), getattr(dataset, f"{kind}_values")
        assert labels is None or len(labels) == rows
        assert values is None or (len(values) == rows and bool(values.isfinite().all()))
        for i, count in enumerate(dataset.label_counts.get(f"{kind}_labels", ())):
            assert labels is not None
            assert not rows or -1 <= int(labels[:, i].min()) <= int(labels[:, i].max()) < count
            assert len(dataset.vocabularies.get(f"{kind}_labels/{i}", range(count))) == count
    size_at_edge = sizes.repeat_interleave(dataset.edge_ptr.diff())
    assert bool(((dataset.source >= 0) & (dataset.source < size_at_edge)).all())
    batch = dataset.batch(torch.arange(len(dataset)))
    source, destination = batch.edge_index
    assert bool((batch.graph_of_node[source] == batch.graph_of_node[destination]).all())


def assert_refusal(error: InputError, path: Path | None = None) -> None:
    """A line, not too long, that names the file."""
    message = str(error)
    assert "\n" not in message, message[:300]
    if path is not None:
        assert message.startswith(str(path)), message[:300]
        message = message.replace(str(path), "")
    assert len(message) <= LONGEST_MESSAGE, message[:300]


# The readers


@dataclass(frozen=True)
class Reader:
    """Something that reads what comes from outside."""

    write: Callable[[Random, Path], Path]
    """Makes a broken input in an empty folder."""
    read: Callable[[Path], object]
    inputs: int
    """How many of 200,000 and more ``tests/reliability/fuzz.py`` tries."""
    is_named: bool = True
    """Refusals begin with the path."""

    def attempt(self, number: int, scratch: Path) -> str:
        """Make input ``number`` and read it: 'read' or 'refused'. Anything else is raised."""
        folder = scratch / "input"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = self.write(Random(f"{self.read.__name__}/{number}"), folder)
        try:
            self.read(path)
        except InputError as error:
            assert_refusal(error, path if self.is_named else None)
            return "refused"
        return "read"


def _write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def _perhaps_packed(drawn: Random, path: Path, content: bytes) -> Path:
    """The file, or it as .gz, whole or broken once more."""
    if drawn.randrange(4) == 0:
        path, content = path.with_name(f"{path.name}.gz"), gzip.compress(content, 1, mtime=0)
        content = mutated(drawn, content, BYTEWISE) if drawn.randrange(2) else content
    path.write_bytes(content)
    return path


def _write_tu(drawn: Random, folder: Path) -> Path:
    name, files = "SMALL", {field: text.encode() for field, text in tu_files.SMALL.items()}
    if drawn.randrange(5) == 0:
        name, files = "MUTAG", _mutag()
    is_zip, is_text = drawn.randrange(2), drawn.randrange(2)
    broken = some_mutated(drawn, files) if is_text or not is_zip else dict(files)
    for field in list(broken):
        if drawn.randrange(20) == 0:
            del broken[field]
    path = _write(folder / name, {f"{name}_{field}.txt": content for field, content in broken.items()})
    if not is_zip:
        return path
    path = tu_files.zipped(path, folder / f"{name}.zip", drawn.choice(("", "", "deep/", "../")))
    if not is_text:
        path.write_bytes(mutated(drawn, path.read_bytes(), BYTEWISE) or b"\0")
    return path


@cache
def _mutag() -> dict[str, bytes]:
    """The files of the data set that comes with the package."""
    import zipfile

    with zipfile.ZipFile(EMBEDDED / "MUTAG.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".txt") and "MUTAG_" in name]
        return {name.rpartition("MUTAG_")[2].removesuffix(".txt"): archive.read(name) for name in names}


def _write_ogb(drawn: Random, folder: Path) -> Path:
    files = {field: text.encode() for field, text in drawn.choice((ogb_files.MOLECULES, ogb_files.CODE)).items()}
    is_text = drawn.randrange(3)
    without = tuple(field for field in files if is_text and drawn.randrange(40) == 0)
    path = ogb_files.folder(folder / "small", some_mutated(drawn, files) if is_text else files, without)
    if drawn.randrange(2):
        path = ogb_files.zipped(path, folder / "small.zip")
        if not is_text:
            path.write_bytes(mutated(drawn, path.read_bytes(), BYTEWISE) or b"\0")
    elif not is_text:
        each = path / f"{drawn.choice(sorted(files))}.csv.gz"
        each.write_bytes(mutated(drawn, each.read_bytes(), BYTEWISE) or b"\0")
    return path


MOLECULES = {
    "m.csv": b"smiles,id,y\nCCO,a,1\nc1ccccc1,b,0\nCC(=O)[O-].[Na+],c,1\nC[C@H](N)O,d,0\n",
    "n.tsv": b"mol\tname\tlogp\nCCO\tethanol\t-0.31\nCCCC\tbutane\t2.89\n\"C(C)N\"\tx\t\nC=C\ty\t1.1\n",
    "k.csv": b"smiles;t1;t2\nCCO;1;0\nCN;;1\nC#N;0;\n",
    "s.smi": b"smiles name\nCCO ethanol\nC/C=C/C trans\nO=C=O\n[13CH4] carbon\n",
}  # fmt: skip


def _write_table(drawn: Random, folder: Path) -> Path:
    name = drawn.choice(sorted(MOLECULES))
    return _perhaps_packed(drawn, folder / name, mutated(drawn, MOLECULES[name]))


def _lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


JSONL = (
    _lines(
        {"nodes": [{"e": "C", "x": 1.5}, {"e": "O", "x": 2}], "edges": [[0, 1, {"order": 1}]], "y": 1, "id": "a"},
        {"nodes": [{"id": "p", "e": "N", "x": 0}, {"id": "q", "x": 0.0}], "edges": [["p", "q"]], "y": 0},
        {"directed": True, "nodes": [{"x": 2}], "edges": [{"source": 0, "target": 0, "order": 2}], "y": 0},
    ),
    _lines(
        {"nodes": 3, "edges": [[0, 1], [1, 2]], "y": [1, None], "graph": {"group": "g"}},
        {"nodes": 2, "y": [0, 1]},
    ),
    _lines(
        {"nodes": [{"v": [1, 2.5]}], "edges": [], "y": 0.5, "group": 1},
        {"nodes": [{"v": [0, 1]}, {"v": [2, 3]}], "edges": [[1, 0]], "y": 2, "group": None},
    ),
)


def _write_jsonl(drawn: Random, folder: Path) -> Path:
    ways = (*MUTATIONS, *[json_changed] * 6)
    return _perhaps_packed(drawn, folder / "g.jsonl", mutated(drawn, drawn.choice(JSONL), ways))


GRAPHML = b"""<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="element" attr.type="string"><default>C</default></key>
  <key id="d1" for="edge" attr.name="length" attr.type="double"/>
  <key id="d2" for="graph" attr.name="y" attr.type="boolean"/>
  <key id="d3" for="node" yfiles.type="nodegraphics"/>
  <graph id="G" edgedefault="undirected">
    <data key="d2">true</data>
    <node id="a"><data key="d0">N</data></node>
    <node id="b"><data key="d3"><x y="1"/></data></node>
    <edge source="a" target="b"><data key="d1">1.5</data></edge>
  </graph>
  <graph edgedefault="directed"><data key="d2">0</data><node id="n0"/><node id="n1"/>
    <edge source="n1" target="n0"><data key="d1">2</data></edge>
  </graph>
</graphml>
"""


def _write_graphml(drawn: Random, folder: Path) -> Path:
    return _perhaps_packed(drawn, folder / "g.graphml", mutated(drawn, GRAPHML))


TRIPLE = {
    "graphs": b"graph,y,group\ng1,1,u\ng2,0,v\n3,1,u\n",
    "nodes": b"graph,node,element,x\ng1,a,C,1\ng1,b,O,2.5\ng2,a,C,0\n3,0,N,-1\n3,1,C,1e3\n",
    "edges": b"graph,source,target,order\ng1,a,b,1\n3,0,1,2\n3,1,0,2\n",
}


@cache
def _parquet() -> dict[str, bytes]:
    import pyarrow
    from pyarrow import csv, parquet

    made = {}
    for part, text in TRIPLE.items():
        out = pyarrow.BufferOutputStream()
        parquet.write_table(csv.read_csv(pyarrow.BufferReader(text)), out)
        made[part] = out.getvalue().to_pybytes()
    return made


def _write_triple(drawn: Random, folder: Path) -> Path:
    folder /= "triple"
    folder.mkdir()
    which = drawn.choice(sorted(TRIPLE))
    for part, text in TRIPLE.items():
        if drawn.randrange(2):
            content = _parquet()[part]
            content = mutated(drawn, content, BYTEWISE) if part == which else content
            (folder / f"{part}.parquet").write_bytes(content)
        else:
            _perhaps_packed(drawn, folder / f"{part}.csv", mutated(drawn, text) if part == which else text)
    return folder


def _write_split(drawn: Random, folder: Path) -> Path:
    files = {"train": b"0\n1\n2\n5\n", "valid": b"3\n", "test": b"4\n6\n"}
    for name, content in some_mutated(drawn, files).items():
        _perhaps_packed(drawn, folder / f"{name}.{drawn.choice(('csv', 'csv', 'txt'))}", content)
    return folder


RECIPE = b"""# a run
dataset = "NCI1"
model = "mnagt"
targets = ["y"]
[settings]
dim = 64
depth = 4
dropout = 0.25
residual = "block"
[train]
epochs = 100
lr = 1e-3
schedule = "cosine"
class_weights = false
[split]
kind = "stratified"
folds = 10
"""
SPACE = b"""[space]
lr = { low = 1e-4, high = 1e-2, log = true }
depth = { low = 2, high = 6 }
readout = ["sum", "mean"]
"""


def _write_recipe(drawn: Random, folder: Path) -> Path:
    name, content = drawn.choice((("recipe.toml", RECIPE), ("recipe.toml", RECIPE), ("space.toml", SPACE)))
    return _write(folder, {name: mutated(drawn, content)}) / name


def read_toml_settings(path: Path) -> object:
    return read_recipe(path) if path.name == "recipe.toml" else search_space(RunConfig("MUTAG"), path)


CODE = b'''# -*- coding: utf-8 -*-
"""A module."""
import os

class Reader(object):
    size: int = 0x10

    @property
    def path_of(self, *names: str, sep="/", **more) -> str:
        """Joined."""
        for i, name in enumerate(names):
            if not name or name[1:2, ...] == b"\\x00":
                continue
            self.size += len(name) ** 2 - 1_000j
        return f"{sep.join(names)!r:>{self.size}}"

async def fetch(url, /, *, tries=3):
    try:
        async with url as got, other:
            return [x async for x in got if (y := x)]
    except* (OSError, ValueError) as error:
        raise error from None
    finally:
        del url
    match tries:
        case {"a": [1, *rest], **kw} if rest:
            return lambda q: (yield q)
'''


def _write_code(drawn: Random, folder: Path) -> Path:
    return _write(folder, {"source.py": mutated(drawn, CODE)}) / "source.py"


@cache
def _model_files() -> dict[str, bytes]:
    """A model for MUTAG that has learned nothing, calibrated."""
    import tempfile

    torch.manual_seed(0)
    mutag = load_dataset("MUTAG")
    settings = full_settings("mnagt", SMALL)
    thresholds = tuple(tuple(i / 100 for i in range(LEVELS)) for _ in range(2))
    trained = TrainedModel(
        build_model("mnagt", SMALL, mutag.features, 2),
        mutag.task,
        "mnagt",
        settings,
        {"dataset": "MUTAG"},
        mutag.vocabularies,
        Calibration(1.5, thresholds, 20),
    )
    with tempfile.TemporaryDirectory() as folder:
        trained.save(Path(folder))
        return {path.name: _without_digest(path) for path in Path(folder).iterdir()}


def _without_digest(path: Path) -> bytes:
    """The file, where it is a record without its digest: whoever changes it can drop that."""
    if path.name == "config.json" or path.suffix != ".json":
        return path.read_bytes()
    return json.dumps(read_json(path), indent=2).encode()


SMALL = {"depth": 2, "dim": 12, "heads": 1, "head_dim": 8, "wl_vocabulary_size": 64}


def _write_model(drawn: Random, folder: Path) -> Path:
    files = dict(_model_files())
    name = drawn.choice(("config.json", "config.json", "model.safetensors", "calibration.json"))
    ways = BYTEWISE if name == "model.safetensors" else (*MUTATIONS, *[json_changed] * 12)
    files[name] = mutated(drawn, files[name], ways)
    _write(folder, files)
    if name == "config.json" and drawn.randrange(2):  # whoever changes it can change the fingerprints too
        weights, _ = load_tensors(folder / "model.safetensors")
        save_tensors(folder / "model.safetensors", weights, fingerprints(folder / "config.json", weights))
    return folder


def load_and_ask(path: Path) -> object:
    """Whatever was loaded must answer, or say that the graphs are not for it."""
    trained = load_model(path)
    try:
        return trained.predict(load_dataset("MUTAG"), torch.tensor([0, 5]))
    except InputError:
        return None


@cache
def _run_files() -> dict[str, bytes]:
    """A run that was interrupted after its first epoch."""
    import tempfile
    from unittest.mock import patch

    with tempfile.TemporaryDirectory() as folder:
        with patch("mnagt.training.run.remove_checkpoint"):
            train(_run_config(), Path(folder) / "run", dataset=load_dataset("MUTAG"))
        names = ("run.json", "split.json", "last.safetensors")
        return {name: _without_digest(Path(folder) / "run" / name) for name in names}


def _run_config() -> RunConfig:
    return RunConfig("MUTAG", "gcn", {"dim": 8, "depth": 1}, TrainConfig(epochs=1, batch_size=188), device="cpu")


def _write_run(drawn: Random, folder: Path) -> Path:
    files = dict(_run_files())
    name = drawn.choice(("run.json", "split.json", "last.safetensors", "last.safetensors"))
    ways = BYTEWISE[:3] if name == "last.safetensors" else (*MUTATIONS, *[json_changed] * 12)
    files[name] = mutated(drawn, files[name], ways)
    return _write(folder, files)


TRIALS = _lines(
    {"config": {"dataset": "MUTAG", "model": "gin", "settings": {"dim": 8}}, "result": {"test": {"accuracy": 1}}},
    {"config": {"dataset": "NCI1", "train": {"epochs": 3, "lr": 0.1}}, "result": {"test": {"accuracy": 0.5}}},
)


def _write_ledger(drawn: Random, folder: Path) -> Path:
    content = mutated(drawn, TRIALS, (*MUTATIONS, *[json_changed] * 6))
    return _write(folder, {"trials.jsonl": content}) / "trials.jsonl"


@cache
def _packed() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        data = load_dataset("MUTAG")
        some = PackedDataset.from_batch("some", data.task, data.batch(torch.arange(5)), label_counts=data.label_counts)
        save_packed(replace(some, vocabularies=data.vocabularies), Path(folder) / "packed")
        return (Path(folder) / "packed").read_bytes()


def _write_packed(drawn: Random, folder: Path) -> Path:
    return _write(folder, {"packed": mutated(drawn, _packed(), (*BYTEWISE, token_changed))}) / "packed"


@cache
def _mapped() -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_packed(Path(folder) / "it", [load_dataset("MUTAG").select(torch.arange(5))])
        return {path.name: _without_digest(path) for path in (Path(folder) / "it").iterdir()}


def _write_mapped(drawn: Random, folder: Path) -> Path:
    files, name = dict(_mapped()), drawn.choice(("packed.json", "packed.json", *_mapped()))
    ways = (*MUTATIONS, *[json_changed] * 12) if name == "packed.json" else BYTEWISE
    return _write(folder / "it", files | {name: mutated(drawn, files[name], ways)})


SDF = b"""ethanol
  it
 
  3  2  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  0
    1.5000    0.0000    0.0000 C   0  0
    2.2000    1.2000    0.0000 O   0  0
  1  2  1  0
  2  3  1  0
M  END
>  <y>
1

>  <name> (2)
two
lines

$$$$
methane


  1  0  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 C   0  0
M  CHG  1   1   0
M  END
> <y>
0

$$$$
"""


def _write_sdf(drawn: Random, folder: Path) -> Path:
    return _write(folder, {"m.sdf": mutated(drawn, SDF)}) / "m.sdf"


TOKENS = b"""[alice]
token = "0123456789abcdef-a"
per_minute = 600
["night.ly"]
token = "0123456789abcdef-b"
"""


def _write_tokens(drawn: Random, folder: Path) -> Path:
    return _write(folder, {"tokens.toml": mutated(drawn, TOKENS)}) / "tokens.toml"


# The service


def _untrained(features: Features, task: Task, vocabularies: dict[str, tuple[str, ...]]) -> TrainedModel:
    torch.manual_seed(0)
    model = build_model("mnagt", SMALL, features, task.num_outputs).eval()
    return TrainedModel(model, task, "mnagt", full_settings("mnagt", SMALL), {"dataset": "toys"}, vocabularies)


@cache
def _services() -> tuple[asyncio.AbstractEventLoop, dict[str, Any]]:
    """Services of models that read molecules, plain graphs and code."""
    from mnagt.serve.app import create_app
    from mnagt.serve.config import ServeConfig

    types = (UNKNOWN, "Module", "FunctionDef", "arguments", "Return", "Name")
    models = {
        "smiles": _untrained(FEATURES, SingleLabel(("no", "yes")), {}),
        "graphs": _untrained(
            Features(Columns((3,), 1), Columns((2,))), SingleLabel(("a", "b")), {"node_labels/0": ("C", "N", "O")}
        ),
        "code": _untrained(
            Features(Columns((len(types), 3, 21)), Columns((4,))),
            SubTokens(("get", "set", "mean")),
            {"node_labels/0": types, "node_labels/1": ("__NONE__", UNKNOWN, MASK)},
        ),
    }
    apps = {kind: create_app(trained, ServeConfig(window_ms=0)) for kind, trained in models.items()}
    return asyncio.new_event_loop(), apps


BODIES = {
    "smiles": {"smiles": ["CCO", "c1ccccc1"], "level": None},
    "graphs": {
        "graphs": [
            {
                "nodes": 2,
                "edges": [[0, 1]],
                "directed": False,
                "node_labels": [["C"], [2]],
                "node_values": [[0.5], [1]],
                "edge_labels": [[1]],
            }
        ]
    },
    "code": {"code": "def f(x):\n    return x\n\ndef g(): ..."},
}


_JSON, INFER = "application/json", "/v2/models/mnagt/infer"


def _tensors(body: dict[str, Any]) -> dict[str, Any]:
    """The request in the form of the Open Inference Protocol."""
    (kind, given), *_ = body.items()
    texts = [given] if kind == "code" else [each if kind == "smiles" else json.dumps(each) for each in given]
    inputs = [{"name": kind, "shape": [len(texts)], "datatype": "BYTES", "data": texts, "parameters": {}}]
    return {"id": "7", "inputs": inputs, "outputs": [{"name": "prediction"}], "parameters": {"level": None}}


def _write_http(drawn: Random, folder: Path) -> Path:
    kind = drawn.choice(sorted(BODIES))
    others = ("/model", "/models", "/metrics", "/openapi.json", "/v2/models/mnagt", "/x", "/")
    path = drawn.choice(("/predict",) * 6 + ("/explain",) * 2 + (INFER,) * 3 + others)
    content = _tensors(BODIES[kind]) if path == INFER else BODIES[kind]
    body = json.dumps(content | ({"which": 0, "target": None} if path == "/explain" else {})).encode()
    method = "POST" if path in ("/predict", "/explain", INFER) else "GET"
    is_odd = drawn.randrange(8) == 0
    request = {
        "kind": kind,
        "path": path,
        "method": drawn.choice(("GET", "PUT", "HEAD", "X")) if is_odd else method,
        "headers": [
            ["content-type", drawn.choice(("text/plain", "é", "", "multipart/form-data")) if is_odd else _JSON],
            ["content-length", drawn.choice(("-1", "x", "9" * 30, "1e3", "", "²")) if is_odd else None],
            ["authorization", drawn.choice((None, "Bearer x", "\xff"))],
        ],
    }
    (folder / "body").write_bytes(mutated(drawn, body, (*MUTATIONS, *[json_changed] * 12)))
    (folder / "request.json").write_text(json.dumps(request))
    return folder


def ask(path: Path) -> object:
    """Through the whole application, as a server would ask it. Refusals are statuses of the 400s."""
    loop, apps = _services()
    request, body = json.loads((path / "request.json").read_text()), (path / "body").read_bytes()
    given = {name: value for name, value in request["headers"] if value is not None}
    headers = {"host": "127.0.0.1", "content-length": str(len(body))} | given
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request["method"],
        "scheme": "http",
        "path": request["path"],
        "raw_path": request["path"].encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    waiting, sent = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.Event().wait()  # the client stays
        return waiting.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    loop.run_until_complete(apps[request["kind"]](scope, receive, send))
    status = sent[0]["status"]
    assert 200 <= status < 500, f"{status}: {sent[1]['body'][:200]!r}"
    if status >= 400:
        if request["method"] == "HEAD":
            raise InputError("refused")
        raise InputError(json.loads(sent[1]["body"])["error" if request["path"].startswith("/v2") else "detail"])
    return status


# Readers return data sets, unless they say otherwise


def tu(path: Path) -> None:
    dataset = read_tu(path)
    assert_consistent(dataset)
    batch = dataset.batch(torch.arange(len(dataset)))
    (source, destination), nodes = batch.edge_index, batch.num_nodes
    key = destination * nodes + source
    assert bool((source != destination).all())
    assert bool((key.diff() > 0).all())
    assert torch.equal((source * nodes + destination).sort().values, key)


def ogb(path: Path) -> None:
    dataset = read_ogb(path)
    assert_consistent(dataset)
    if dataset.official is not None:
        official_split(dataset.official)


def table(path: Path) -> None:
    assert_consistent(read_molecules(path, targets=("t1", "t2") if path.name.startswith("k") else None).dataset)


def jsonl(path: Path) -> None:
    assert_consistent(read_jsonl(path).pack())


def graphml(path: Path) -> None:
    assert_consistent(read_graphml(path).pack())


def triple(path: Path) -> None:
    assert_consistent(read_node_edge_tables(path).pack(targets=("y",)))


def split(path: Path) -> object:
    return read_split(path, 7)


def run(path: Path) -> None:
    """Gone on with for a few epochs: it may ask for many."""
    with suppress(_EnoughError):
        resume(path, reporter=_Few())


class _EnoughError(Exception):
    pass


class _Few(Reporter):
    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        if record["epoch"] > 2:
            raise _EnoughError


def sdf(path: Path) -> None:
    assert_consistent(read_molecules(path, targets=("y",)).dataset)


def mapped(path: Path) -> None:
    assert_consistent(open_packed(path))


def ledger(path: Path) -> object:
    return Ledger(path).by_key()


READERS = {
    "tu": Reader(_write_tu, tu, 24_000),
    "ogb": Reader(_write_ogb, ogb, 18_000),
    "molecules": Reader(_write_table, table, 18_000),
    "sdf": Reader(_write_sdf, sdf, 12_000),
    "jsonl": Reader(_write_jsonl, jsonl, 24_000),
    "graphml": Reader(_write_graphml, graphml, 22_000),
    "triple": Reader(_write_triple, triple, 15_000),
    "split": Reader(_write_split, split, 9_000, is_named=False),
    "recipe": Reader(_write_recipe, read_toml_settings, 15_000),
    "code": Reader(_write_code, read_functions, 16_000),
    "model": Reader(_write_model, load_and_ask, 2_500),
    "run": Reader(_write_run, run, 1_000, is_named=False),
    "ledger": Reader(_write_ledger, ledger, 5_000),
    "packed": Reader(_write_packed, load_packed, 5_000),
    "mapped": Reader(_write_mapped, mapped, 4_000),
    "tokens": Reader(_write_tokens, read_callers, 4_000),
    "http": Reader(_write_http, ask, 8_000, is_named=False),
}
