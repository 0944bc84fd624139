"""Every row of the input is answered once and in its place, wherever a screening was stopped."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from smiles_tables import write_csv

from mnagt import RunConfig, SplitConfig, TrainConfig, predict, screen, train
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.experiments.config import RayConfig
from mnagt.experiments.executors import RAY_ENVIRONMENT
from mnagt.files import write_record
from mnagt.screening import screen as module
from mnagt.screening.config import ScreenConfig

COMMAND = """
import sys
from mnagt.screening.screen import screen
screen(sys.argv[1], sys.argv[2:3], sys.argv[3], jobs=2)
"""


def read_rows(out: Path) -> list[dict[str, str]]:
    """The rows of all shards, in order."""
    rows = []
    for path in sorted(out.glob("part-*.csv")):
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    return rows


def read_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.csv"))}


def test_a_screening_gives_what_predict_gives(model, tmp_path):
    path = write_csv(tmp_path / "in.csv", 2500)
    done = screen(model, [path], tmp_path / "out", jobs=1)
    expected, rows = predict(model, str(path)), read_rows(tmp_path / "out")
    assert [row["id"] for row in rows] == list(expected["id"])
    assert list(rows[0]) == list(expected)
    assert [row["note"] or None for row in rows] == expected["note"]
    assert (done.files, done.rows, done.new_rows) == (1, 2500, 2500)
    assert done.refused == sum(note is not None for note in expected["note"]) > 0
    found = [float(row["p(active)"]) for row in rows if not row["note"]]
    assert found == pytest.approx([p for p in expected["p(active)"] if p is not None], abs=1e-6)


def test_rows_of_two_molecules_and_columns_of_numbers_are_read_as_predict_reads_them(tmp_path):
    train_on = tmp_path / "train.csv"
    lines = [f"{'C' * (n % 9 + 1)}O,{'C' * (n // 9 + 1)},{n / 2},{n % 2}" for n in range(40)]
    train_on.write_text("solute,solvent,heat,y\n" + "\n".join(lines) + "\n")
    read = {"smiles": "solute,solvent", "targets": ("y",), "split": SplitConfig("random"), "device": "cpu"}
    settings = {"dim": 8, "depth": 1, "descriptors": ("heat",)}
    config = RunConfig(str(train_on), "gin", settings, TrainConfig(epochs=1), **read)
    train(config, tmp_path / "run")
    path = tmp_path / "in.csv"
    path.write_text("solute,solvent,heat\nCCO,C,1\nC1CC,CC,2\nCO,not,3\nCO,CC,warm\nCO,CC,\nCO,CCC,2.5\n")
    screen(tmp_path / "run", [path], tmp_path / "out", jobs=1)
    rows = read_rows(tmp_path / "out")
    assert [row["note"] for row in rows[:4]] == [
        "",
        "column 'solute': not a SMILES",
        "column 'solvent': not a SMILES",
        "'warm' is no number, as heat has to be",
    ]
    path.write_text(path.read_text().replace("warm", "nan"))
    expected = predict(tmp_path / "run", str(path))
    assert [row["note"] or None for row in rows][4:] == expected["note"][4:] == [None, None]
    for row in (0, 4, 5):
        assert float(rows[row]["p(1)"]) == pytest.approx(expected["p(1)"][row], abs=1e-6)


def test_a_screening_that_was_stopped_goes_on(model, tmp_path, monkeypatch):
    path, undisturbed = write_csv(tmp_path / "in.csv", 2500), tmp_path / "undisturbed"
    config = ScreenConfig(top_k=7, by="p(active)")
    screen(model, [path], undisturbed, config, jobs=1)
    real, screened = module.screen_shard, []

    def stop_at_the_third(job: Any, shard: Any) -> dict[str, Any]:
        if len(screened) == 2:
            raise KeyboardInterrupt
        screened.append(shard.number)
        return real(job, shard)

    monkeypatch.setattr(module, "screen_shard", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        screen(model, [path], tmp_path / "out", config, jobs=1)
    monkeypatch.setattr(module, "screen_shard", real)
    (tmp_path / "out" / "part-00000.csv").write_text("cut off")
    assert screen(model, [path], tmp_path / "out", config, jobs=1).new_rows == 1500
    assert read_bytes(tmp_path / "out") == read_bytes(undisturbed)
    again = screen(model, [path], tmp_path / "out", config, jobs=1)
    assert (again.rows, again.new_rows) == (2500, 0)


def test_the_best_rows_are_those_of_all_shards(model, tmp_path):
    path, config = write_csv(tmp_path / "in.csv", 2500), ScreenConfig(top_k=12, by="weight", lowest=True)
    with path.open("a") as file:
        file.write("a,CCO,-3\nb,C1CC,-2\nc,CCO,\nd,CCO,nan\ne,CCO,heavy\nf,CCN,-1\n")
    screen(model, [path], tmp_path / "out", config, jobs=1)
    with (tmp_path / "out" / "top.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["a", "b", "f", *(f"m{n}" for n in range(9))]
    assert [int(row["line"]) for row in rows[:4]] == [2502, 2503, 2507, 2]


def test_decimals_of_parquet_are_numbers(model, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    prices = pyarrow.array([Decimal("10.50"), None, Decimal("9.75")], pyarrow.decimal128(8, 2))
    parquet.write_table(pyarrow.table({"smiles": ["CCO", "CC", "C"], "price": prices}), tmp_path / "in.parquet")
    screen(model, [tmp_path / "in.parquet"], tmp_path / "out", ScreenConfig(top_k=1, by="price", lowest=True), jobs=1)
    with (tmp_path / "out" / "top.csv").open() as file:
        assert [(row["smiles"], row["price"]) for row in csv.DictReader(file)] == [("C", "9.75")]


def test_a_column_without_numbers_is_named(model, tmp_path, caplog):
    path = write_csv(tmp_path / "in.csv", 3)
    screen(model, [path], tmp_path / "out", ScreenConfig(top_k=1, by="id"), jobs=1)
    assert "no row has a number in 'id' (--by): top.csv has only its header" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model", "begun with another model"),
        ("content", "in.csv: changed since the screening began"),
        ("settings", "begun with top_k = 3, and now it is 0"),
        ("files", "more.csv was not among the files"),
        ("gone", "in.csv: it is gone"),
    ],
)
def test_what_changed_meanwhile_is_named(model, other_model, tmp_path, monkeypatch, change, said):
    path, config = write_csv(tmp_path / "in.csv", 1500), ScreenConfig(top_k=3, by="weight")
    real = module.run_parallel
    monkeypatch.setattr(module, "run_parallel", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        screen(model, [path], tmp_path / "out", config, jobs=1)
    monkeypatch.setattr(module, "run_parallel", real)
    inputs = [path]
    if change == "content":
        path.write_text(path.read_text().replace("CCO", "CCN", 1))
    if change == "gone":
        path.rename(tmp_path / "elsewhere.csv")
        monkeypatch.setattr(module, "find_inputs", lambda names, out: inputs)
    if change == "files":
        inputs.append(write_csv(tmp_path / "more.csv", 10))
    if change == "settings":
        config = ScreenConfig()
    with pytest.raises(InputError, match=said):
        screen(other_model if change == "model" else model, inputs, tmp_path / "out", config, jobs=1)


@pytest.mark.parametrize("name", ["plan.json", "progress.json"])
@pytest.mark.parametrize(
    "content", ["[]", "null", '{"finished": {"0": 5}}', '{"finished": [], "more": 1}', '{"files": [{}]}']
)
def test_records_that_were_edited_are_refused_by_name(model, tmp_path, name, content):
    path, out = write_csv(tmp_path / "in.csv", 20), tmp_path / "out"
    screen(model, [path], out, jobs=1)
    (out / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}: not as a screening writes it; restore it"):
        screen(model, [path], out, jobs=1)


def test_a_shard_that_the_plan_does_not_have_is_not_counted(model, tmp_path):
    path, out = write_csv(tmp_path / "in.csv", 20), tmp_path / "out"
    out.mkdir()
    (out / "progress.json").write_text('{"finished": {"7": {"rows": 3, "refused": 0, "bytes": 1}}}')
    assert screen(model, [path], out, jobs=1).rows == 20


def test_fewer_processes_than_one_are_refused(model, tmp_path):
    with pytest.raises(InputError, match="jobs must be at least 1, got -3"):
        screen(model, [write_csv(tmp_path / "in.csv", 20)], tmp_path / "out", jobs=-3)


def test_a_file_of_another_date_is_the_same(model, tmp_path):
    path = write_csv(tmp_path / "in.csv", 20)
    screen(model, [path], tmp_path / "out", jobs=1)
    (tmp_path / "out" / "part-00000.csv").unlink()
    os.utime(path, (0, 0))
    assert screen(model, [path], tmp_path / "out", jobs=1).new_rows == 20


@pytest.mark.parametrize(
    ("inputs", "config", "said"),
    [
        (["in.csv"], {"top_k": 3, "by": "p"}, r"no column 'p' of numbers \(--by\); there are: .*p\(active\)"),
        (["in.csv"], {"smiles": "mol"}, "no column 'mol'"),
        (["none.csv"], {}, "none.csv: no such file, and no folder or pattern with files of .csv"),
        (["in.csv", "other.csv"], {}, "other.csv: its columns are smiles, and those of .*in.csv id, smiles, weight"),
        (["picture.png"], {}, "picture.png: screened are files of .csv"),
        (["in.csv"], {"level": 0.9}, "not calibrated"),
    ],
)
def test_bad_input_is_named_before_anything_is_screened(model, tmp_path, monkeypatch, inputs, config, said):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("in.csv"), 20)
    Path("other.csv").write_text("smiles\nC\n")
    Path("picture.png").write_text("")
    with pytest.raises(InputError, match=said):
        screen(model, inputs, "out", ScreenConfig(**config), jobs=1)
    assert not Path("out/plan.json").exists()


def test_formulas_are_quoted_in_shards_and_among_the_best_as_predict_quotes_them(model, tmp_path):
    path, out = tmp_path / "in.csv", tmp_path / "out"
    path.write_text("=id,smiles,weight\n=1+1,C,-1\n@x,CC,-2\nplain,CCC,-3\n")
    begun = [str(model), str(path), "--out"]
    assert main(["screen", *begun, str(out), "--quote-formulas", "--top-k", "2", "--by", "weight", "--jobs", "1"]) == 0
    assert main(["predict", *begun, str(tmp_path / "all.csv"), "--quote-formulas"]) == 0
    with (tmp_path / "all.csv").open(newline="") as file:
        expected = [row["'=id"] for row in csv.DictReader(file)]
    assert [row["'=id"] for row in read_rows(out)] == expected == ["'=1+1", "'@x", "plain"]
    with (out / "top.csv").open(newline="") as file:
        assert [(row["'=id"], row["weight"]) for row in csv.DictReader(file)] == [("'=1+1", "-1"), ("'@x", "-2")]


def test_a_plan_that_lacks_a_newer_setting_is_gone_on_with(model, tmp_path):
    path, out = write_csv(tmp_path / "in.csv", 100), tmp_path / "out"
    screen(model, [path], out, jobs=1)
    plan = json.loads((out / "plan.json").read_text())
    del plan["settings"]["quote_formulas"]
    write_record(out / "plan.json", {name: plan[name] for name in plan if name != "digest"})
    assert screen(model, [path], out, jobs=1).new_rows == 0
    with pytest.raises(InputError, match="begun with quote_formulas = False, and now it is True"):
        screen(model, [path], out, ScreenConfig(quote_formulas=True), jobs=1)


def test_top_k_and_by_go_together():
    with pytest.raises(InputError, match="go together"):
        ScreenConfig(top_k=3)
    with pytest.raises(InputError, match="how many"):
        ScreenConfig(lowest=True)


def test_the_command_says_what_was_done(model, tmp_path, capsys):
    path, out = write_csv(tmp_path / "in.csv", 20), tmp_path / "out"
    words = ["screen", str(model), str(path), "--out", str(out), "--jobs", "1", "--top-k", "2", "--by", "weight"]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"20 rows of 1 file in {out}; 7 have no predictions (note)"
    assert printed[1].startswith("20 of them now, in ")
    assert printed[2] == f"the best by weight are in {out / 'top.csv'}"
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_two_screenings_do_not_write_the_same_folder(model, tmp_path):
    path = write_csv(tmp_path / "in.csv", 20)
    (tmp_path / "out").mkdir()
    with (
        module.hold_lock(tmp_path / "out" / ".lock", ""),
        pytest.raises(InputError, match="another process screens into it"),
    ):
        screen(model, [path], tmp_path / "out", jobs=1)


@pytest.mark.slow
def test_a_screening_that_is_killed_again_and_again_answers_every_row_once(model, tmp_path):
    path, undisturbed, out = write_csv(tmp_path / "in.csv", 9000), tmp_path / "undisturbed", tmp_path / "out"
    screen(model, [path], undisturbed, jobs=2)
    words, drawn, kills = [sys.executable, "-c", COMMAND, str(model), str(path), str(out)], random.Random(3), 0

    def count_written() -> int:
        return len(list(out.glob("*.json"))) + len(list(out.glob("*.csv")))

    while True:
        before = count_written()
        with subprocess.Popen(words, start_new_session=True) as process:
            while process.poll() is None and count_written() == before:
                time.sleep(0.01)
            time.sleep(drawn.uniform(0, 0.5))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        if process.returncode == 0:
            break
    assert kills > 2
    assert read_bytes(out) == read_bytes(undisturbed)
    assert json.loads((out / "plan.json").read_text()) == json.loads((undisturbed / "plan.json").read_text())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_of_a_node_that_is_lost_are_screened_elsewhere(model, tmp_path, caplog):
    """Of two nodes of a Ray cluster, one is killed as a machine that loses power, in the middle of a shard."""
    os.environ.update(RAY_ENVIRONMENT)
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    path, here, out = write_csv(tmp_path / "in.csv", 24_000), tmp_path / "here", tmp_path / "out"
    size: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 2**27}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        raylet = cluster.add_node(**size).all_processes["raylet"][0].process.pid
        killed = threading.Event()

        def kill_in_the_middle_of_a_shard() -> None:
            while len(list(out.glob(".part-*"))) < 2:  # each node writes one
                time.sleep(0.01)
            children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
            for process in [raylet, *map(int, children)]:
                os.kill(process, signal.SIGKILL)
            killed.set()

        threading.Thread(target=kill_in_the_middle_of_a_shard, daemon=True).start()
        config = ScreenConfig(top_k=20, by="p(active)", rows_per_shard=3000)
        done = screen(model, [path], out, config, ray=RayConfig(cluster.address), device="cpu")
    finally:
        cluster.shutdown()
    assert killed.is_set()
    assert any("its shard is started again" in record.getMessage() for record in caplog.records)
    assert done.rows == done.new_rows == 24_000
    screen(model, [path], here, config, jobs=2)
    assert read_bytes(out) == read_bytes(here)
    assert [row["id"] for row in read_rows(out)] == [f"m{n}" for n in range(24_000)]
