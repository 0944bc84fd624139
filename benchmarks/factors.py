"""What each setting of a model is worth by validation: many settings varied at once, and a linear model of the scores.

``factors.toml`` lists the levels of each setting, data set by data set. Every trial takes one level of each at random,
all levels equally often, on one of a few splits (``seeds``; or ``folds``, a folder of folders of index files that the
seeds name). So each trial tells about all settings, and a difference between two
levels is a mean over many trials. The test part is never scored. Finished trials are in the ledger, and are not run
again; without trials left to run it prints the tables.

    python benchmarks/factors.py --only NCI1 --ledger results/factors.jsonl --jobs 12 --device cuda --minutes 9
"""

import argparse
import os
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch

from mnagt import Ledger, RunConfig, load_dataset
from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.experiments.executors import run_parallel
from mnagt.experiments.ledger import trial_key
from mnagt.models.registry import build_model
from mnagt.runs.split import make_split
from mnagt.settings import from_dict
from mnagt.training.fit_model import Result, fit_model

DESIGNS = Path(__file__).with_name("factors.toml")
_datasets: dict[str, PackedDataset] = {}


class Trial(NamedTuple):
    """Settings of a run, and the level of each factor that they have."""

    config: RunConfig
    levels: dict[str, str]


def draw_trials(name: str, design: Mapping[str, Any], device: str) -> list[Trial]:
    """All combinations of levels on each seed, or ``design["trials"]`` trials with each level about equally often."""
    factors, seeds = design["factors"], design["seeds"]
    if "trials" in design:
        rng, count = np.random.default_rng(0), design["trials"]
        columns = ([levels[i % len(levels)] for i in rng.permutation(count)] for levels in factors.values())
        drawn = zip(*columns, (seeds[i % len(seeds)] for i in range(count)), strict=True)
    else:
        drawn = product(*factors.values(), seeds)
    trials = []
    for *levels, seed in drawn:
        chosen = dict(zip(factors, levels, strict=True))
        values: dict[str, Any] = {"dataset": name, "model": "mnagt", "device": device, "settings": {}, "train": {}}
        values["split"] = {"seed": seed}
        if "folds" in design:
            values["split"] = {"kind": "files", "folder": str(Path(design["folds"]) / str(seed))}
        parts = [design.get("base", {}), *(v if isinstance(v, dict) else {f: v} for f, v in chosen.items())]
        for key, value in (item for part in parts for item in part.items()):
            section, _, field = key.partition(".")
            values[section][field] = value
        values["train"] |= {"seed": seed}
        config = from_dict(RunConfig, values, where=f"{DESIGNS.name}, {name}")
        trials.append(Trial(config, {factor: _describe(level) for factor, level in chosen.items()}))
    return trials


def _describe(level: Any) -> str:
    if not isinstance(level, dict):
        return str(level)
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in level.items())


def load(name: str) -> PackedDataset:
    if name not in _datasets:
        _datasets[name] = load_dataset(name)
    return _datasets[name]


def run_trial(trial: Trial, until: float) -> tuple[Result, dict[str, Any]] | None:
    """Train, and score the validation part; nothing if it is too late."""
    if time.time() > until:
        return None
    dataset = load(trial.config.dataset)
    split = make_split(trial.config.split, dataset)
    fitted = fit_model(trial.config, dataset, split)
    result, history = fitted.score(split, with_test=False), fitted.trainer.at.history
    scores = [record[f"valid_{result.metric}"] for record in history]
    window = trial.config.train.selection_window
    output = fitted.trainer.ranks.outputs(fitted.model, fitted.trainer.dataset, split.valid, 256).float().cpu()
    notes = {
        "levels": trial.levels,
        "chosen_by": mean(scores[max(0, result.epoch - window) : result.epoch]),
        "last_valid": mean(scores[-window:]),
        "loss": history[-1]["loss"],
        "curve": [round(score, 4) for score in scores[:: max(1, len(scores) // 20)]],
        "outputs": [[float(f"{x:.4g}") for x in row] for row in output.tolist()] if output.numel() <= 4000 else [],
    }
    return result, notes


def prepare_encodings(trials: list[Trial]) -> None:
    """Compute the encodings of all trials once, into the cache on disk, before processes ask for them."""
    for name in {trial.config.dataset for trial in trials}:
        dataset, sizes = load(name), set()
        for trial in trials:
            if trial.config.dataset == name:
                model = build_model("mnagt", trial.config.settings, dataset.features, dataset.task.num_outputs)
                sizes |= set(model.encodings.items())
        for encoding, size in sizes:
            with_encodings(dataset, {encoding: size})
        print(f"{time.process_time():.0f} s of processor time: encodings of {name}", flush=True)


def print_effects(name: str, records: list[dict[str, Any]]) -> None:
    """Least squares: the score as a sum of an effect of the split and one of each level, against the first level."""
    score = np.array([record["chosen_by"] for record in records])
    columns, names = [], []
    seeds = [record["config"]["train"]["seed"] for record in records]
    for seed in sorted(set(seeds)):
        columns.append([float(each == seed) for each in seeds])
    for factor in records[0]["levels"]:
        given = [record["levels"][factor] for record in records]
        first, *others = dict.fromkeys(sorted(given))
        names.append((factor, first, None))
        for level in others:
            names.append((factor, level, len(columns)))
            columns.append([float(each == level) for each in given])
    design = np.array(columns).T
    effects, *_ = np.linalg.lstsq(design, score, rcond=None)
    freedom = max(1, len(score) - np.linalg.matrix_rank(design))
    deviation = np.sqrt(((score - design @ effects) ** 2).sum() / freedom)
    errors = deviation * np.sqrt(np.diag(np.linalg.pinv(design.T @ design)))
    print(f"\n{name}: {len(records)} trials, mean {score.mean():.4f}, best {score.max():.4f}, rest {deviation:.4f}")
    for factor, level, column in names:
        effect = "       0" if column is None else f"{100 * effects[column]:+8.2f} ± {100 * errors[column]:.2f}"
        print(f"  {factor:16} {level:44} {effect}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", nargs="*", help="data sets; all of factors.toml by default")
    options.add_argument("--ledger", type=Path, required=True)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--device", default="auto")
    options.add_argument("--minutes", type=float, default=1e6, help="start no trial after so many minutes")
    options.add_argument("--design", type=Path, default=DESIGNS)
    given = options.parse_args()
    until, ledger = time.time() + 60 * given.minutes, Ledger(given.ledger)
    designs = tomllib.loads(given.design.read_text(encoding="utf-8"))
    drawn = [draw_trials(name, designs[name], given.device) for name in given.only or designs]
    recorded, key = ledger.by_key(), partial(trial_key, is_validation_only=True)
    in_turn = [trial for each in zip_longest(*drawn) for trial in each if trial is not None]
    todo = [trial for trial in in_turn if key(trial.config) not in recorded]
    if todo:
        torch.set_num_threads(os.cpu_count() or 1)
        prepare_encodings(todo)
        torch.set_num_threads(1)
    start = time.time()
    with run_parallel(partial(run_trial, until=until), todo, jobs=given.jobs) as outcomes:
        for trial, outcome in outcomes:
            record_trial(ledger, trial, outcome, start)
    records = list(ledger.records())
    for name in given.only or designs:
        factors = set(designs[name]["factors"])
        of_set = [r for r in records if r["config"]["dataset"] == name and set(r.get("levels", ())) == factors]
        if len(of_set) > 4:
            print_effects(name, of_set)


def record_trial(ledger: Ledger, trial: Trial, outcome: Callable[[], Any], start: float) -> None:
    try:
        found = outcome()
    except Exception as error:  # one setting that fails must not end the sweep
        print(f"{trial.config.dataset} {trial.levels}: {type(error).__name__}: {error}", flush=True)
        return
    if found is not None:
        result, notes = found
        ledger.append(trial.config, result, **notes)
        scores = f"{notes['chosen_by']:.4f} {notes['last_valid']:.4f} loss {notes['loss']:.3f}"
        name, levels = trial.config.dataset, " ".join(trial.levels.values())
        print(f"{time.time() - start:5.0f} s  {name:14} {scores} {result.seconds:4.0f} s  {levels}", flush=True)


if __name__ == "__main__":
    main()
