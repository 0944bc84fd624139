"""chemprop in a comparison: its own program trains on the same parts, and our task scores its predictions."""

import csv
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import SEPARATOR, get_smiles
from mnagt.data.splits import PARTS, Split, keep_share
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.files import read_json, write_json
from mnagt.graphs.molecules import choose_row_format
from mnagt.runs.config import RunConfig
from mnagt.runs.defaults import resolve_defaults
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.split import make_split
from mnagt.tasks import Task
from mnagt.training.fit_model import Result

NAME = "chemprop"
RECORDS = "chemprop.json"
"""Its finished trainings, in the folder of the comparison."""
HOW_TO_ADD = (
    "its program is not installed; to compare it too: python -m venv chem && chem/bin/pip install chemprop, and then "
    "--chemprop chem/bin/chemprop"
)
PART, WEIGHT = "part", "weight"
"""Columns of its table."""


class Usage(NamedTuple):
    """What a finished process took."""

    seconds: float
    processor_seconds: float
    memory_mb: float
    """At its peak."""


def run_measured(words: Sequence[str], log: Path) -> Usage:
    """Run a command with its output in ``log``, and measure it; an error has the last line of the output."""
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"status {process.returncode}")
        raise InputError(f"{' '.join(words[:2])} failed: {last}")
    return Usage(time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def train_command(
    program: str, table: Path, smiles: Sequence[str], targets: Sequence[str], *, kind: str | None, part: str
) -> list[str]:
    """The command that trains on a table whose column ``part`` says train, val or test, with chemprop's defaults."""
    kind, metric = ("regression", "rmse") if kind == "number" else ("classification", "roc")
    words = [program, "train", "--data-path", str(table), "--smiles-columns", *smiles, "--target-columns", *targets]
    return [*words, "--task-type", kind, "--metrics", metric, "--splits-column", part]


def check_task(dataset: PackedDataset) -> None:
    """Refuse graphs without SMILES, and targets that a column of chemprop's table cannot hold."""
    if dataset.texts is None:
        raise InputError("it reads SMILES, and these graphs have none")
    if choose_row_format(dataset.features).is_reaction:
        raise InputError("reactions are not given to it")
    task = dataset.task
    if task.column_kind is None:
        raise InputError(f"it is given numbers, labels or two classes, and the task is {task.describe()}")


def run_chemprop(
    program: str,
    trials: dict[Any, RunConfig],
    dataset: PackedDataset,
    out: Path,
    on_trial: Callable[[RunConfig, dict[str, Any]], None] = lambda config, record: None,
) -> dict[Any, dict[str, Any]]:
    """Train chemprop on the split of each trial, and return records like those of a ledger.

    Finished trainings are kept in ``out`` and not run again.
    """
    if shutil.which(program) is None:
        raise InputError(HOW_TO_ADD)
    check_task(dataset)
    path, fingerprint, version, records = out / RECORDS, dataset_fingerprint(dataset), "", {}
    recorded = read_json(path) if path.exists() else {}
    for name, config in trials.items():
        split = keep_share(make_split(config.split, dataset), config.train.train_share, config.train.seed)
        epochs = None if "epochs" in config.by_data else config.train.epochs
        parts = [getattr(split, part) for part in PARTS]
        metric = resolve_defaults(replace(config, model=RunConfig.model), dataset, split).train.metric
        key = [fingerprint, [part.tolist() for part in parts], config.train.seed, epochs, metric]
        digest = hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest()
        if digest not in recorded:
            version = version or _read_version(program)
            words = ["--pytorch-seed", str(config.train.seed), *([] if epochs is None else ["--epochs", str(epochs)])]
            words += ["--accelerator", "cpu"] if pick_device(config.device).type == "cpu" else []
            task = dataset.task.fit(dataset.targets[split.train]).with_metric(metric)
            recorded[digest] = _train_once(program, words, dataset, split, task, out) | {"version": version}
            write_json(path, recorded)
            on_trial(config, recorded[digest])
        records[name] = recorded[digest]
    return records


def _read_version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix(NAME).strip()


def _train_once(
    program: str, options: Sequence[str], dataset: PackedDataset, split: Split, task: Task, out: Path
) -> dict[str, Any]:
    """Train in a process of its own, and score its predictions of the validation and the test part."""
    with TemporaryDirectory(dir=out) as scratch:
        folder = Path(scratch)
        smiles, targets = write_table(folder / "table.csv", dataset, split)
        words = train_command(program, folder / "table.csv", smiles, targets, kind=task.column_kind, part=PART)
        words += [] if dataset.row_weights is None else ["--weight-column", WEIGHT]
        usage = run_measured([*words, *options, "--output-dir", str(folder / "run")], folder / "log.txt")
        predicted = _read_predictions(folder / "run" / "model_0" / "test_predictions.csv", targets)
    parts = {"valid": split.valid, "test": split.test}
    if len(predicted) != sum(map(len, parts.values())):
        raise InputError(f"chemprop predicted {len(predicted):,} molecules, not those of the validation and test part")
    outputs = dict(zip(parts, task.from_predicted_columns(predicted).split([*map(len, parts.values())]), strict=True))
    scores = {part: task.scores(output, dataset.targets[parts[part]]) for part, output in outputs.items()}
    ends = {part: task.score_intervals(output, dataset.targets[parts[part]]) for part, output in outputs.items()}
    metric = task.metric
    result = Result(
        metric, 0, scores["valid"][metric], scores["test"], 0, round(usage.seconds, 3), "", ends["test"],
        ends["valid"].get(metric, []),
    )  # fmt: skip
    return {
        "result": asdict(result),
        "split": {part: len(getattr(split, part)) for part in PARTS},
        "peak_memory_mb": round(usage.memory_mb, 1),
    }


def write_table(path: Path, dataset: PackedDataset, split: Split) -> tuple[list[str], list[str]]:
    """Write what chemprop reads, and return the columns of SMILES and of targets.

    Validation molecules are there twice, once more as test molecules, so that one process predicts both parts.
    """
    rows = [text.split(SEPARATOR) for text in get_smiles(dataset)]
    values = dataset.targets.double().reshape(len(dataset), -1)
    cells = [["" if value != value else repr(value) for value in row] for row in values.tolist()]
    smiles, targets = [f"smiles{i}" for i in range(len(rows[0]))], [f"target{i}" for i in range(len(cells[0]))]
    weights = torch.ones(len(dataset)) if dataset.row_weights is None else dataset.row_weights
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*smiles, *targets, WEIGHT, PART])
        parts = {"train": split.train, "val": split.valid, "test": torch.cat([split.valid, split.test])}
        for part, graphs in parts.items():
            writer.writerows([*rows[graph], *cells[graph], float(weights[graph]), part] for graph in graphs.tolist())
    return smiles, targets


def _read_predictions(path: Path, targets: Sequence[str]) -> Float[Tensor, "graphs columns"]:
    with path.open(newline="", encoding="utf-8") as file:
        return torch.tensor([[float(row[name]) for name in targets] for row in csv.DictReader(file)])
