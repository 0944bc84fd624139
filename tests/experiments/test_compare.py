"""One command compares models on the same splits, goes on after an interruption, and says which to use."""

import csv
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from markup import is_self_contained

from mnagt import load_dataset
from mnagt.cli import main
from mnagt.data.readers.split_columns import SplitColumn
from mnagt.data.splits import keep_share, random_split
from mnagt.data.table_config import TableConfig
from mnagt.experiments import compare as comparing
from mnagt.experiments.compare import CONSTANT, Compared, Comparison, default_models, score_constant
from mnagt.graphs.memory import reset_peak_memory, resident_memory
from mnagt.graphs.molecules import MOLECULES
from mnagt.runs.config import TrainConfig
from mnagt.tasks import Mixed, MultiLabel, Regression

MUTAG = load_dataset("MUTAG")
WORDS = ["compare", "MUTAG", "--models", "gin,wl-linear", "--seeds", "1", "--epochs", "1", "--device", "cpu"]


def compared(
    name: str, valid: float, interval: tuple[float, float] | None, seconds: float = 1.0, test: float = 0.5
) -> Compared:
    return Compared(name, (valid,), interval, (test,), (test - 0.1, test + 0.1), {}, seconds)


def compare_these(*models: Compared) -> Comparison:
    return Comparison("toys", "rocauc", True, models, {})


def test_the_fastest_of_equals_is_advised():
    best, slow = compared("mnagt", 0.9, (0.8, 0.95), 50.0), compared("gin", 0.7, (0.6, 0.8))
    assert "use mnagt" in compare_these(best, slow).verdict()
    fast = compared("wl-linear", 0.85, (0.7, 0.9), 2.0)
    verdict = compare_these(best, fast, slow).verdict()
    assert "Use the fastest, wl-linear (2.0 s to train; mnagt: " in verdict
    assert "gin" not in verdict
    assert "no better than a constant" in compare_these(best, compared(CONSTANT, 0.81, (0.8, 0.8))).verdict()
    assert "use none of them" in compare_these(compared(CONSTANT, 0.9, (0.9, 0.9)), slow).verdict()


def test_a_perfect_score_excludes_no_model_whose_interval_holds_it():
    perfect, other = compared("wl-linear", 1.0, (1.0, 1.0), 5.0), compared("mnagt-ensemble", 0.988, (0.94, 1.0), 2.0)
    worse = compared("gin", 0.7, (0.6, 0.8), 1.0)
    found = compare_these(perfect, other, worse, compared(CONSTANT, 0.5, (0.5, 0.5)))
    assert [each.model for each in found.equals] == ["wl-linear", "mnagt-ensemble"]
    assert "their intervals hold this score" in found.verdict()
    assert "Use the fastest, mnagt-ensemble" in found.verdict()


def write_ledger(out, scores: dict[str, tuple[float, float]], **changes) -> None:
    """Replace validation and test scores in the ledger of ``WORDS``."""
    lines = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("digest", None)
        result, (valid, test) = line["result"], scores[line["config"]["model"]]
        result |= {"valid": valid, "test": result["test"] | {result["metric"]: test}, **changes}
        result["test_intervals"][result["metric"]] = [test - 0.01, test + 0.01]
    (out / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_validation_recommends_where_test_disagrees(tmp_path, capsys):
    out = tmp_path / "cmp"
    assert main([*WORDS, "--out", str(out)]) == 0
    write_ledger(out, {"gin": (0.97, 0.71), "wl-linear": (0.83, 0.93)}, valid_interval=[0.96, 0.98])
    capsys.readouterr()
    assert main([*WORDS, "--out", str(out)]) == 0
    found, printed = json.loads((out / "result.json").read_text()), capsys.readouterr().out
    assert found["choice"] == next(iter(found["models"])) == "gin"
    assert "use gin" in found["verdict"]
    assert "test scores chose nothing" in printed
    assert "test scores chose nothing" in (out / "report.html").read_text()


def test_ledgers_without_validation_intervals_are_read_with_a_notice(tmp_path, capsys):
    out = tmp_path / "cmp"
    assert main([*WORDS, "--out", str(out)]) == 0
    write_ledger(out, {"gin": (0.97, 0.71), "wl-linear": (0.96, 0.93)}, valid_interval=[])
    capsys.readouterr()
    assert main([*WORDS, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Use gin." in printed
    assert "before validation intervals were kept" in printed
    write_ledger(out, {"gin": (0.97, 0.71), "wl-linear": (0.96, 0.93)}, valid=None)
    assert main([*WORDS, "--out", str(out)]) == 2
    assert "no validation scores of gin" in capsys.readouterr().err


def test_the_constant_is_the_majority_or_the_mean():
    split = random_split(188, 0)
    of_classes = score_constant(TrainConfig(), MUTAG, [split])
    majority = MUTAG.targets[split.train].mode().values
    assert of_classes.mean == pytest.approx((MUTAG.targets[split.test] == majority).double().mean().item())
    values = torch.arange(188.0)[:, None]
    numbers = replace(MUTAG, task=Regression(("n",)), targets=values)
    errors = values[split.test] - values[split.train].mean()
    for transform in ("standardise", "log"):
        of_numbers = score_constant(TrainConfig(target_transform=transform), numbers, [split])
        assert of_numbers.mean == pytest.approx(errors.square().mean().sqrt().item(), rel=1e-4)


def test_the_loss_of_the_constant_is_that_of_the_models():
    split, label = random_split(188, 0), MUTAG.targets.float()
    values = torch.stack([label, torch.arange(1.0, 189).exp2().clamp(max=1e6)], dim=1)
    task = Mixed(("mutagenic", "n"), (MultiLabel(("mutagenic",)), Regression(("n",))))
    config = TrainConfig(target_transform="log", target_weights=(3.0, 1.0), metric="loss")
    found = score_constant(config, replace(MUTAG, task=task, targets=values), [split]).mean
    share, logs = label[split.train].mean(), values[:, 1].log()
    mean, std = logs[split.train].mean(), logs[split.train].std(correction=0)
    of_label = F.binary_cross_entropy(share.expand(len(split.test)), label[split.test])
    of_number = ((logs[split.test] - mean) / std).square().mean()
    assert found == pytest.approx(((3 * of_label + of_number) / 4).item(), rel=1e-3)


def test_shares_of_the_training_part_are_nested():
    split = random_split(188, 0)
    quarter, half = (set(keep_share(split, share, seed=3).train.tolist()) for share in (0.25, 0.5))
    assert quarter < half < set(split.train.tolist())
    assert len(half) == 75
    assert keep_share(split, 1.0, seed=3) is split


def test_memory_is_measured_anew():
    reset_peak_memory()
    before = resident_memory(is_peak=True)
    assert len(bytearray(200_000_000)) > 0
    assert resident_memory(is_peak=True) > before + 150 * 2**20


def test_the_command_writes_a_page_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    out = tmp_path / "cmp"
    assert main([*WORDS, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("gin", "wl-linear", CONSTANT, "(95 %)"))
    page = (out / "report.html").read_text()
    assert is_self_contained(page)
    found = json.loads((out / "result.json").read_text())
    assert found["verdict"] in printed
    assert (
        re.search(r"^next    mnagt train MUTAG --epochs 1 --device cpu --model (gin|wl-linear)$", printed, re.MULTILINE)
        or CONSTANT in found["verdict"]
    )
    assert list(found["models"]["gin"]["curve"]) == ["38", "75", "150"]
    lines = (out / "trials.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 3
    (out / "trials.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    trained = []
    original = comparing.run_trials
    monkeypatch.setattr(
        comparing,
        "run_trials",
        lambda *a, on_trial=print, **k: original(*a, on_trial=lambda c, r: trained.append(c.model), **k),
    )
    assert main([*WORDS, "--out", str(out)]) == 0
    assert trained == ["wl-linear"]
    assert len((out / "trials.jsonl").read_text().splitlines()) == 6


def test_models_go_by_the_kind_of_graphs(tmp_path, capsys):
    assert default_models(MUTAG)[:2] == ("mnagt", "gin")
    assert "morgan-forest" in comparing.FOR_MOLECULES
    assert MUTAG.features != MOLECULES
    assert main(["compare", "MUTAG", "--models", "gni", "--out", str(tmp_path / "x")]) == 2
    assert "gni" in capsys.readouterr().err


# Real tables


@pytest.fixture(scope="module")
def bbbp(data_root) -> list[dict[str, str]]:
    """The first 240 rows of ogbg-molbbbp, each with a part: the third of three is for validation and test."""
    pytest.importorskip("rdkit")
    with gzip.open(data_root / "ogbg_molbbbp" / "mapping" / "mol.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))[:240]
    parts = ("train", "train", "val", "train", "train", "test")
    return [{"smiles": row["smiles"], "y": row["p_np"], "part": parts[i % 6]} for i, row in enumerate(rows)]


def write_table(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


OF_TABLES = ["--models", "gin,morgan-forest", "--seeds", "1", "--curve-seeds", "0", "--epochs", "1", "--device", "cpu"]


def compare_table(*words: str, out: Path) -> tuple[int, dict]:
    status = main(["compare", *words, *OF_TABLES, "--out", str(out)])
    return status, json.loads((out / "result.json").read_text()) if status == 0 else {}


@pytest.mark.real_data
def test_a_real_table_is_compared_on_the_parts_that_its_column_names(bbbp, tmp_path, capsys):
    table, out = write_table(tmp_path / "bbbp.csv", bbbp), tmp_path / "out"
    words = [table, "--target", "y", "--split-column", "part", "--duplicates", "drop"]
    status, found = compare_table(*words, out=out)
    assert status == 0
    dataset = load_dataset(table, targets=["y"], group=SplitColumn("part", "parts"), options=TableConfig("drop"))
    assert dataset.official is not None
    assert list(found["parts"].values()) == dataset.official.bincount().tolist()
    assert set(found["models"]) == {"gin", "morgan-forest", CONSTANT}
    assert found["metric"] == "rocauc"
    assert found["models"]["morgan-forest"]["test"][0] > 0.6
    (proposed,) = re.findall(r"^next    mnagt train (.*) --model \S+$", capsys.readouterr().out, re.MULTILINE)
    assert proposed.split() == [*words, "--epochs", "1", "--device", "cpu"]
    write_table(tmp_path / "bbbp.csv", bbbp[:-6])
    assert compare_table(*words, out=out)[0] == 2
    assert "bbbp has changed since; compare into a new folder" in capsys.readouterr().err


@pytest.mark.real_data
def test_real_tables_of_other_parts_are_compared_on(bbbp, tmp_path, capsys):
    sides = {part: [row for row in bbbp if row["part"] == part] for part in ("train", "val", "test")}
    train, valid, test = (write_table(tmp_path / f"{part}.csv", rows) for part, rows in sides.items())
    words = [train, "--target", "y", "--valid", valid, "--test", test]
    status, found = compare_table(*words, out=tmp_path / "out")
    assert status == 0
    assert [found["parts"][name] for name in ("valid", "test")] == pytest.approx([40, 40], abs=4)
    assert compare_table(train, "--target", "y", "--descriptor-file", test, out=tmp_path / "other")[0] == 2
    assert "none of its columns is read" in capsys.readouterr().err
