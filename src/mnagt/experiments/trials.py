"""Trials: trainings of recipes over several seeds, run in parallel, with finished ones kept in a ledger."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from mnagt.data.duplicates import has_duplicate
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import DATASETS, load_dataset
from mnagt.data.splits import PARTS, Split, keep_share
from mnagt.errors import InputError
from mnagt.experiments.config import RayConfig
from mnagt.experiments.executors import run_parallel
from mnagt.experiments.ledger import Ledger, describe_environment, trial_key
from mnagt.graphs.memory import reset_peak_memory, resident_memory
from mnagt.inference.model_folder import TrainedModel
from mnagt.nn.joined_model import JoinedModel
from mnagt.runs.config import RunConfig, SplitConfig
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.folder import dataset_arguments, name_descriptors
from mnagt.runs.split import make_split, resolve_split_kind
from mnagt.training.fit_model import fit_model
from mnagt.training.progress import Reporter
from mnagt.training.run import Result, train

CURVE_POINTS = 25
"""Most points that a curve is kept in."""


class Trial(NamedTuple):
    """The result of a trial, and what a ledger line has beside it and the settings."""

    result: Result
    """Without test scores, if only validation was asked for."""
    notes: dict[str, Any]
    """``chosen_by``: mean validation score over the selection window that chose the epoch. ``last_valid``: the same for
    the last epochs, as many as that window has. ``curves``: loss and validation scores by epoch, in few points.
    ``dataset`` and ``split``: what it was trained on. ``without_duplicates``: test scores on the graphs that have no
    structural duplicate in training, and their number; of splits drawn at random. ``members``: test scores of the
    linear model and of the network of a wide-and-deep model, each alone. ``ran_on``: machine and versions of a
    worker on a cluster."""


class Job(NamedTuple):
    """A trial to run."""

    config: RunConfig
    """The trial as the ledger has it."""
    remote: RunConfig | None = None
    """On a cluster, the same with absolute paths."""
    fingerprint: dict[str, Any] | None = None
    """What the data set must be there."""


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The same run with other weights, order and split."""
    return replace(config, train=replace(config.train, seed=seed), split=replace(config.split, seed=seed))


def with_split_folders(configs: Sequence[RunConfig], folder: Path) -> list[RunConfig]:
    """The same runs on splits from index files: run ``i`` takes the i-th folder in ``folder``, in turn."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not folders:
        raise InputError(f"{folder}: no folders with index files in it")
    splits = (SplitConfig("files", folder=str(path)) for path in cycle(folders))
    return [replace(config, split=split) for config, split in zip(configs, splits, strict=False)]


def run_trials(
    configs: Iterable[RunConfig],
    ledger: Ledger,
    *,
    jobs: int = 1,
    devices: Sequence[str] = (),
    ray: RayConfig | None = None,
    is_validation_only: bool = False,
    on_trial: Callable[[RunConfig, dict[str, Any]], None] = lambda config, record: None,
    on_failure: Callable[[RunConfig, Exception], None] | None = None,
    reporter: Reporter | None = None,
    until: float = math.inf,
) -> list[dict[str, Any]]:
    """Run the trials that the ledger lacks, and return the records of all, in order.

    Args:
        configs: The trials.
        ledger: Where finished trials are recorded. Only this process writes to it.
        jobs: Trials that run at once, each in a process of its own.
        devices: Devices on which trials take turns.
        ray: A Ray cluster that runs the trials in place of ``jobs`` local processes.
        is_validation_only: Whether the test part is left alone; such trials are recorded apart from the others.
        on_trial: Called with each new record.
        on_failure: Called with a trial that failed, and the others go on; without it a failure ends all.
        reporter: Called with the progress of trials that run one at a time.
        until: No trial is started after this ``time.time()``; running ones finish.

    >>> from pathlib import Path
    >>> from mnagt import Ledger, RunConfig, TrainConfig, run_trials
    >>> trial = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu")
    >>> len(run_trials([trial, trial], Ledger(Path("trials.jsonl"))))
    2
    """
    configs, key = list(configs), partial(trial_key, is_validation_only=is_validation_only)
    recorded = ledger.by_key()
    missing = list({key(config): config for config in configs if key(config) not in recorded}.values())
    if missing:
        ledger.check()
    if devices:
        missing = [replace(config, device=device) for config, device in zip(missing, cycle(devices), strict=False)]
    todo = [Job(c) if ray is None else Job(c, with_absolute_paths(c), _load(c)[1]) for c in missing]
    run = partial(_run_job, until=until, is_validation_only=is_validation_only)
    if ray is None and jobs == 1:
        run = partial(run, reporter=reporter)
    kept = f"finished trials are in {ledger.path}"
    with run_parallel(run, todo, jobs=jobs, ray=ray, device=lambda job: job.config.device, kept=kept) as outcomes:
        for job, outcome in outcomes:
            try:
                trial = outcome()
            except Exception as error:
                if on_failure is None:
                    raise
                on_failure(job.config, error)
                continue
            if trial is not None:
                notes = trial.notes if ray else {**trial.notes, "side_by_side": jobs}
                on_trial(job.config, ledger.append(job.config, trial.result, **notes))
    recorded = ledger.by_key()
    return [recorded[key(config)] for config in configs if key(config) in recorded]


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The same run with paths that hold in any folder, and descriptors by name."""
    config = name_descriptors(config)
    path, folder = Path(config.dataset).expanduser(), config.split.folder
    if config.dataset not in DATASETS and path.exists():
        table = config.table.replace_files(lambda file: str(Path(file).expanduser().resolve()))
        config = replace(config, dataset=str(path.resolve()), table=table)
    if folder is not None:
        config = replace(config, split=replace(config.split, folder=str(Path(folder).resolve())))
    return config


def _run_job(job: Job, *, until: float, is_validation_only: bool, reporter: Reporter | None = None) -> Trial | None:
    """Run a trial, unless it is too late. A worker of a cluster reads the data set from where its machine keeps it."""
    if time.time() > until:
        return None
    if job.remote is None or job.fingerprint is None:
        return run_trial(job.config, reporter=reporter, is_validation_only=is_validation_only)
    check_same_data(_load(job.remote)[1], job.fingerprint)
    trial, environment = run_trial(job.remote, is_validation_only=is_validation_only), describe_environment()
    return Trial(trial.result, {**trial.notes, "ran_on": {name: environment[name] for name in ("machine", "versions")}})


def check_same_data(fingerprint: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse to train on other graphs than were asked for."""
    if fingerprint != expected:
        raise InputError(
            f"has {fingerprint}, and where it is asked for it is {expected}; put the same files into its MNAGT_DATA"
        )


def run_trial(config: RunConfig, *, reporter: Reporter | None = None, is_validation_only: bool = False) -> Trial:
    """Train ``config`` and score its test part, unless ``is_validation_only``."""
    reset_peak_memory()
    config = name_descriptors(config)
    dataset, fingerprint = _load(config)
    run = None
    if is_validation_only:
        split = keep_share(make_split(config.split, dataset), config.train.train_share, config.train.seed)
        fitted = fit_model(config, dataset, split, reporter=reporter, with_forest=False)
        history, result = fitted.trainer.at.history, fitted.score(split, with_test=False)
    else:
        run = train(config, dataset=dataset, reporter=reporter)
        history, result, split = run.history, run.result, run.split
    window = min(config.train.selection_window, len(history))
    scores = [record[f"valid_{result.metric}"] for record in history]
    notes = {
        "chosen_by": mean(scores[result.epoch - window : result.epoch]),
        "last_valid": mean(scores[-window:]),
        "curves": thin_curves([{n: r[n] for n in ("epoch", "loss", f"valid_{result.metric}")} for r in history]),
        "dataset": fingerprint,
        "split": _describe_split(split),
        "peak_memory_mb": round(resident_memory(is_peak=True) / 2**20, 1),
    }
    if run is not None and isinstance(run.trained.model, JoinedModel):
        notes["members"] = score_members(run.trained, run.trained.model, dataset, split)
    if run is not None and resolve_split_kind(config).split.kind in ("random", "stratified"):
        notes["without_duplicates"] = score_without_duplicates(run.trained, dataset, split)
    return Trial(result, notes)


def score_without_duplicates(trained: TrainedModel, dataset: PackedDataset, split: Split) -> dict[str, float]:
    """Test scores on the graphs without a structural duplicate in training, and how many ``graphs`` these are.

    Only the number is given where no graph is left.
    """
    unique = split.test[~has_duplicate(dataset, split.test, split.train)]
    if len(unique) == 0:
        return {"graphs": 0}
    return {"graphs": len(unique), **trained.task.scores(trained.outputs(dataset, unique), dataset.targets[unique])}


def score_members(
    trained: TrainedModel, model: JoinedModel, dataset: PackedDataset, split: Split
) -> dict[str, dict[str, float]]:
    """Test scores of each member of a joined model by itself."""
    outputs = model.outputs_of_members(lambda: trained.outputs(dataset, split.test))
    return {name: trained.task.scores(output, dataset.targets[split.test]) for name, output in outputs.items()}


def thin_curves(history: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """The curves of a run in few points: each is the mean over a stretch of epochs, placed at its last epoch."""
    stretch = -(-len(history) // CURVE_POINTS)
    parts = [history[start : start + stretch] for start in range(0, len(history), stretch)]
    names = [name for name in history[0] if name not in ("epoch", "lr")]
    curves = {name: [float(f"{mean(epoch[name] for epoch in part):.5g}") for part in parts] for name in names}
    return {"epoch": [part[-1]["epoch"] for part in parts], **curves}


def _describe_split(split: Split) -> dict[str, Any]:
    parts = [getattr(split, name) for name in PARTS]
    digest = hashlib.blake2b(b"|".join(part.numpy().tobytes() for part in parts), digest_size=12)
    return {**{name: len(part) for name, part in zip(PARTS, parts, strict=True)}, "digest": digest.hexdigest()}


def _load(config: RunConfig) -> tuple[PackedDataset, dict[str, Any]]:
    """The data set of a run, and its fingerprint; kept for the other trials of this process."""
    arguments = dataset_arguments(config)
    key = repr(arguments)
    if key not in _LOADED:
        dataset = load_dataset(**arguments)
        _LOADED[key] = dataset, dataset_fingerprint(dataset)
    return _LOADED[key]


def keep_dataset(config: RunConfig, dataset: PackedDataset) -> None:
    """Let the trials of this process have the data set of a run that is loaded already."""
    _LOADED[repr(dataset_arguments(config))] = dataset, dataset_fingerprint(dataset)


_LOADED: dict[str, tuple[PackedDataset, dict[str, Any]]] = {}


@dataclass(frozen=True)
class Summary:
    """Means over the trials of one recipe, of the task's own metric."""

    trials: int
    test_mean: float
    """NaN where only validation was scored."""
    test_std: float
    """NaN for one trial."""
    valid_mean: float
    parameters: int
    seconds: float
    """Mean training time of a trial."""


def summarise(records: Sequence[dict[str, Any]]) -> Summary:
    """Mean and deviation of the results of ledger lines."""
    results = [record["result"] for record in records]
    test = [result["test"][result["metric"]] for result in results if result["test"]]
    return Summary(
        len(results),
        mean(test) if test else math.nan,
        stdev(test) if len(test) > 1 else math.nan,
        mean(result["valid"] for result in results),
        results[0]["parameters"],
        mean(result["seconds"] for result in results),
    )


def summary_table(
    records: Mapping[str, Sequence[dict[str, Any]]], *, is_validation_only: bool
) -> tuple[list[str], list[list[Any]]]:
    """Head and rows of a table with a line for each recipe, from its ledger lines.

    A sweep by validation shows the mean score over the selection windows, which picks lucky epochs too, and that over
    the last epochs, which does not.
    """
    scores = ["valid, chosen epochs", "valid, last epochs", "epoch"] if is_validation_only else ["test", "valid"]
    rows = []
    for name, each in records.items():
        summary, results = summarise(each), [record["result"] for record in each]
        if is_validation_only:
            chosen, last = ([record[field] for record in each] for field in ("chosen_by", "last_valid"))
            cells = [format_mean(chosen), format_mean(last), f"{mean(result['epoch'] for result in results):.0f}"]
        else:
            tests = [result["test"][result["metric"]] for result in results]
            cells = [format_mean(tests), f"{summary.valid_mean:.4f}"]
        rows.append([name, len(each), *cells, f"{summary.parameters:,}", f"{summary.seconds:.1f}"])
    return ["recipe", "trials", *scores, "parameters", "seconds"], rows


def format_mean(values: Sequence[float]) -> str:
    """Mean and, of several values, standard deviation: 0.8123 ± 0.0123."""
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")
