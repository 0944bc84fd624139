"""Files of all forms are cut into shards that have every row once."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from smiles_tables import SMILES, write_csv

from mnagt import screen
from mnagt.errors import InputError
from mnagt.screening.chunks import read_chunks
from mnagt.screening.config import ScreenConfig
from mnagt.screening.inputs import MAX_LINE, cut_shards, find_inputs, scan_file


def read_all(path: Path, most: int = 1000) -> dict[str, list[Any]]:
    """The columns of a file, read by shards, and the problems of rows."""
    shards = cut_shards([scan_file(path)], most, 1)
    columns: dict[str, list[Any]] = {name: [] for name in shards[0].file.columns} | {"problem": []}
    row = 0
    for shard in shards:
        assert shard.first == row
        for chunk in read_chunks(shard):
            assert chunk.first == row
            row += len(chunk)
            for name, column in chunk.columns.items():
                columns[name] += column
            columns["problem"] += [chunk.problems.get(each) for each in range(len(chunk))]
    assert row == sum(shard.rows for shard in shards) == shards[0].file.rows
    return columns


@pytest.mark.parametrize("rows", [1, 999, 1000, 1001, 2999, 5500])
@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("compress", [False, True])
def test_every_line_is_in_one_shard(tmp_path, rows, end, compress):
    text = "id,smiles\n" + "\n".join(f"m{n},{SMILES[n % 10]}" for n in range(rows)) + end
    path = tmp_path / ("in.csv.gz" if compress else "in.csv")
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    found = read_all(path)
    assert found["id"] == [f"m{n}" for n in range(rows)]
    assert found["smiles"] == [SMILES[n % 10] for n in range(rows)]
    assert set(found["problem"]) == {None}


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.smi", "CCO ethanol\nC\n", {"smiles": ["CCO", "C"], "name": ["ethanol", ""]}),
        ("a.smi", "smiles name\nCCO one two \n\nC\n", {"smiles": ["CCO", "", "C"], "name": ["one two", "", ""]}),
        ("a.tsv", "smiles\tx\r\nCCO\t1,5\r\n", {"smiles": ["CCO"], "x": ["1,5"]}),
        ("a.csv", "\ufeffsmiles;x\nCCO;1\n", {"smiles": ["CCO"], "x": ["1"]}),
        ("a.csv", "\ufeffCCO,1\nC,2\n", {"smiles": ["CCO", "C"], "column 2": ["1", "2"]}),
        ("a.csv", 'smiles,x\n"CCO","a, ""b"""\n', {"smiles": ["CCO"], "x": ['a, "b"']}),
    ],
)
def test_forms_of_lines(tmp_path, name, text, columns):
    (tmp_path / name).write_bytes(text.encode())
    found = read_all(tmp_path / name)
    assert found.pop("problem") == [None] * len(found["smiles"])
    assert found == columns


def test_a_bad_line_is_noted_and_spoils_no_other(tmp_path):
    path = tmp_path / "in.csv"
    long = b"CCO," + b"x" * (3 * MAX_LINE)
    path.write_bytes(b'smiles,x\nCCO,1\nCCN,1,2\nCC,"1\nC\xff,1\n' + long + b"\n\nCCC,3\n")
    found = read_all(path)
    assert found["smiles"] == ["CCO", "CCN", "CC", "C\ufffd", "CCO", "", "CCC"]
    assert found["problem"] == [
        None,
        "3 fields, and the header has 2",
        "a quote that does not end; a line is a row",
        "byte 0xff is not UTF-8",
        f"over {MAX_LINE:,} bytes in a line",
        None,
        None,
    ]


def test_rows_of_parquet_keep_their_types(model, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    smiles = [None if n % 10 == 4 else SMILES[n % 10] for n in range(3500)]
    table = pyarrow.table({"n": range(3500), "smiles": smiles, "tags": [[n, None] for n in range(3500)]})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=1700)
    assert read_all(tmp_path / "in.parquet") == {**table.to_pydict(), "problem": [None] * 3500}
    screen(model, [tmp_path / "in.parquet"], tmp_path / "out", ScreenConfig(rows_per_shard=1000), jobs=1)
    parts = [parquet.read_table(path) for path in sorted((tmp_path / "out").glob("part-*.parquet"))]
    assert [len(part) for part in parts] == [1000, 1000, 1000, 500]
    written = pyarrow.concat_tables(parts)
    assert written.select(table.column_names) == table
    kinds = {field.name: str(field.type) for field in written.schema if field.name not in table.column_names}
    assert kinds == {"prediction": "string", "p(inactive)": "double", "p(active)": "double", "note": "string"}
    is_molecule = [n % 10 not in (3, 4, 6) for n in range(3500)]
    assert [p is not None for p in written.column("p(active)").to_pylist()] == is_molecule
    assert [note is None for note in written.column("note").to_pylist()] == is_molecule


def test_tables_of_text_may_be_written_as_parquet(model, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write_csv(tmp_path / "in.csv", 30)
    screen(model, [path], tmp_path / "out", ScreenConfig(format="parquet"), jobs=1)
    found = parquet.read_table(tmp_path / "out" / "part-00000.parquet")
    assert found.column("id").to_pylist() == [f"m{n}" for n in range(30)]


def test_folders_and_patterns_stand_for_their_files(tmp_path):
    (tmp_path / "in" / "more").mkdir(parents=True)
    names = ["b.csv", "a.csv", "more/c.smi.gz", "more/d.txt", ".hidden.csv"]
    for name in names:
        (tmp_path / "in" / name).write_text("")
    out = tmp_path / "in" / "out"
    out.mkdir()
    (out / "part-00000.csv").write_text("")

    def found(*inputs: str) -> list[str]:
        return [str(path.relative_to(tmp_path / "in")) for path in find_inputs(inputs, out)]

    assert found(str(tmp_path / "in")) == ["a.csv", "b.csv", "more/c.smi.gz"]
    assert found(str(tmp_path / "in" / "*.csv")) == ["a.csv", "b.csv"]
    assert found(str(tmp_path / "in" / "b.csv"), str(tmp_path / "in")) == ["b.csv", "a.csv", "more/c.smi.gz"]


def test_files_without_rows_spoil_no_others(model, tmp_path):
    """Spark writes a part for each partition, also where it has no rows."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "part-0.csv").write_text("id,smiles,weight\n")
    write_csv(tmp_path / "in" / "part-1.csv", 3)
    (tmp_path / "in" / "part-2.csv").write_text("id,smiles,weight")
    done = screen(model, [tmp_path / "in"], tmp_path / "out", jobs=1)
    assert (done.files, done.rows) == (3, 3)
    assert screen(model, [tmp_path / "in" / "part-0.csv"], tmp_path / "none", jobs=1).rows == 0


def test_an_empty_part_of_parquet_has_no_shard(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"smiles": pyarrow.array([], pyarrow.string())}), tmp_path / "in.parquet")
    assert cut_shards([scan_file(tmp_path / "in.parquet")], 1000, 1) == []


@pytest.mark.parametrize("name", ["in.csv", "in.smi"])
def test_lines_that_end_in_carriage_returns_alone_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"smiles,x\rCCO,1\rC,2\r")
    with pytest.raises(InputError, match=rf"{name}: its lines end in a carriage return alone; convert them"):
        scan_file(tmp_path / name)


@pytest.mark.parametrize(("name", "cut"), [("in.csv.gz", True), ("in.parquet", False)])
def test_a_damaged_file_is_named(tmp_path, name, cut):
    pytest.importorskip("pyarrow")
    text = gzip.compress(b"smiles\n" + b"".join(b"C%d\n" % n for n in range(5000)))
    (tmp_path / name).write_bytes(text[:-20])
    with pytest.raises(InputError, match=rf"{name}: .*damaged"):
        scan_file(tmp_path / name)
