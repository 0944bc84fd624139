"""Tries of a table: what each change to a recipe does to validation, on several data sets and seeds.

The file of tries (TOML) holds tables ``[[try]]`` with a ``name`` and what differs from ``recipes/DATASET/mnagt.toml``
(or that of another ``recipe``): ``settings`` of the model, ``train``, and ``datasets`` if not all. Test parts are never
scored. Finished trainings are in the ledger, one JSON line each, and are not run again: a hunt goes on from machine to
machine. Prints a table: mean validation score of the ten epochs that are best on average, which chooses lucky epochs
too, and of the last ten; of a third of all epochs, where that is fewer.
"""

import json
import time
import tomllib
from collections import defaultdict
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import common

from mnagt.data import load_dataset
from mnagt.data.packed import PackedDataset
from mnagt.experiments.engines import side_by_side
from mnagt.experiments.ledger import circumstances, trial_key
from mnagt.experiments.trials import with_seed
from mnagt.training.config import RunConfig, SplitConfig
from mnagt.training.devices import pick_device
from mnagt.training.fit import Trainer
from mnagt.training.run import make_split, prepared, read_recipe

HERE = Path(__file__).parent


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("tries", type=Path, nargs="?", default=HERE / "hunt.toml", help="[benchmarks/hunt.toml]")
    parser.add_argument("--ledger", type=Path, default=HERE.parent / "results" / "hunt.jsonl")
    parser.add_argument("--datasets", nargs="+", default=["NCI1", "NCI109", "COLLAB"])
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names of tries, such as 'fifth: *'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folds", type=Path, help="splits (rare_scaffolds.py) that seeds take turns at")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no training is begun")
    options = parser.parse_args()
    until = time.time() + options.seconds
    folds = sorted(options.folds.iterdir()) if options.folds else []
    tries = tomllib.loads(options.tries.read_text(encoding="utf-8"))["try"]
    there = {record["key"] for record in _records(options.ledger)}
    wanted: list[tuple[str, RunConfig, float]] = []
    asked: dict[str, tuple[str, str]] = {}
    for seed in options.seeds:
        for each in tries:
            for name in each.get("datasets", options.datasets):
                if name in options.datasets and any(fnmatchcase(each["name"], one) for one in options.only):
                    config = with_seed(_changed(_recipe(name, each), each, options.epochs), seed)
                    if folds:
                        config = replace(config, split=SplitConfig("files", folder=str(folds[seed % len(folds)])))
                    asked[trial_key(config)] = (each["name"], name)
                    if trial_key(config) not in there:
                        wanted.append((each["name"], config, until))
    with (
        side_by_side(_validate, wanted, options.jobs) as outcomes,
        options.ledger.open("a", encoding="utf-8") as ledger,
    ):
        for (name, config, _), outcome in outcomes:
            try:
                found = outcome()
            except Exception as error:
                print(f"{name} on {config.dataset}, seed {config.train.seed}: {error!r}"[:300], flush=True)
                continue
            if found is not None:
                record = {"key": trial_key(config), "try": name, "config": asdict(config), **found, **circumstances()}
                print(json.dumps(record), file=ledger, flush=True)
    _print_table([(asked[r["key"]], r) for r in _records(options.ledger) if r["key"] in asked])


def _recipe(dataset: str, each: dict[str, Any]) -> RunConfig:
    return read_recipe(HERE.parent / "recipes" / dataset.lower() / f"{each.get('recipe', 'mnagt')}.toml")


def _changed(config: RunConfig, each: dict[str, Any], epochs: int | None) -> RunConfig:
    train = each.get("train", {}) | ({} if epochs is None else {"epochs": epochs})
    settings = config.settings | each.get("settings", {})
    return replace(
        config, settings=settings, train=replace(config.train, **train), model=each.get("model", config.model)
    )


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _validate(work: tuple[str, RunConfig, float]) -> dict[str, Any] | None:
    """Figures of validation; None if it is too late to begin."""
    _, config, until = work
    if time.time() > until:
        return None
    began, whole = time.time(), _dataset(config.dataset)
    split = make_split(config.split, whole)
    model, dataset, task = prepared(config, whole, split)
    at = Trainer(model, dataset, split, task, config.train, device=pick_device(config.device)).run()
    scores = [record[f"valid_{task.metric}"] for record in at.history]
    stretch = min(10, -(-len(scores) // 3))
    best = max if task.higher_is_better else min
    return {
        "best": best(mean(scores[i : i + stretch]) for i in range(len(scores) - stretch + 1)),
        "last": mean(scores[-stretch:]),
        "scores": scores,
        "epoch": at.best_epoch,
        "loss": at.history[-1]["loss"],
        "parameters": model.parameter_count,
        "seconds": round(at.seconds, 1),
        "seconds_in_all": round(time.time() - began, 1),
    }


@cache
def _dataset(name: str) -> PackedDataset:
    """Kept from try to try, with its encodings."""
    return load_dataset(name)


def _print_table(found: list[tuple[tuple[str, str], dict[str, Any]]]) -> None:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for key, record in found:
        rows[key].append(record)
    print(f"{'data set':14s}{'try':34s}{'n':>3s}{'best':>8s}{'last':>8s}{'epoch':>7s}{'loss':>8s}{'s':>8s}")
    for (name, dataset), records in sorted(rows.items(), key=lambda row: (row[0][1], -_mean(row[1], "last"))):
        figures = (
            f"{100 * _mean(records, 'best'):8.2f}{100 * _mean(records, 'last'):8.2f}{_mean(records, 'epoch'):7.0f}"
        )
        figures += f"{_mean(records, 'loss'):8.3f}{_mean(records, 'seconds'):8.1f}"
        print(f"{dataset:14s}{name:34s}{len(records):3d}{figures}")


def _mean(records: list[dict[str, Any]], what: str) -> float:
    return mean(record[what] for record in records)


if __name__ == "__main__":
    main()
