"""Many trials of a few recipes: seeds side by side in processes, finished ones kept in a ledger."""

import hashlib
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from statistics import mean, stdev
from typing import Any

import torch

from mnagt.data import load_dataset
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import PARTS, Split
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.training.config import RunConfig
from mnagt.training.progress import Reporter
from mnagt.training.run import Result, train

CURVE_POINTS = 25
"""A curve is kept in no more points."""


@dataclass(frozen=True)
class Trial:
    """What a trial gave, and what it was done on."""

    result: Result
    chosen_by: float
    """The mean validation score that chose the epoch."""
    curves: dict[str, list[float]]
    """Loss and validation scores by epoch, thinned."""
    dataset: dict[str, Any]
    split: dict[str, Any]


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The same run with other weights, order and split."""
    return replace(config, train=replace(config.train, seed=seed), split=replace(config.split, seed=seed))


def run_trials(
    configs: Iterable[RunConfig],
    ledger: Ledger,
    *,
    jobs: int = 1,
    devices: Sequence[str] = (),
    told: Callable[[RunConfig, dict[str, Any]], None] = lambda config, record: None,
    failed: Callable[[RunConfig, Exception], None] | None = None,
    reporter: Reporter | None = None,
) -> list[dict[str, Any]]:
    """The records of these trials, in order; those that the ledger lacks are run now, ``jobs`` at a time.

    They take turns on ``devices``, if any are named. A trial that fails ends it all; with ``failed`` that is told
    instead, and the others go on. ``reporter`` is shown trials that run one at a time.
    """
    configs = list(configs)
    there = ledger.by_key()
    missing = list({key: config for config in configs if (key := trial_key(config)) not in there}.values())
    if missing:
        ledger.check()
    if devices:
        missing = [replace(config, device=devices[i % len(devices)]) for i, config in enumerate(missing)]
    with _outcomes(missing, jobs, reporter) as outcomes:
        for config, outcome in outcomes:
            try:
                trial = outcome()
            except BrokenExecutor:
                raise InputError(
                    f"a process of the {jobs} side by side has died, likely for lack of memory; lower --jobs and run "
                    f"again: finished trials are in {ledger.path}"
                ) from None
            except Exception as error:
                if failed is None:
                    raise
                failed(config, error)
                continue
            beside = {field.name: getattr(trial, field.name) for field in fields(trial) if field.name != "result"}
            told(config, ledger.append(config, trial.result, **beside, side_by_side=jobs))
    there = ledger.by_key()
    return [there[key] for config in configs if (key := trial_key(config)) in there]


@contextmanager
def _outcomes(
    configs: Sequence[RunConfig], jobs: int, reporter: Reporter | None
) -> Iterator[Iterator[tuple[RunConfig, Callable[[], Trial]]]]:
    """Each trial with what gives its outcome, as they end."""
    if jobs == 1 or not configs:
        yield ((config, partial(run_trial, config, reporter)) for config in configs)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_settle) as pool:
        running = {pool.submit(run_trial, config): config for config in configs}
        try:
            yield ((running[done], done.result) for done in as_completed(running))
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()  # asked to stop, it would go on with the next trial; and nobody writes this one down
            raise


def _settle() -> None:
    """One thread a process; Ctrl-C is for the trial in it, and nothing between trials."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_trial(config: RunConfig, reporter: Reporter | None = None) -> Trial:
    dataset, facts = _dataset(config.dataset, config.smiles, config.targets, config.task)
    run = train(config, dataset=dataset, reporter=reporter)
    stretch = min(config.train.choose_over, len(run.history))
    scores = [record[f"valid_{run.result.metric}"] for record in run.history]
    chosen_by = mean(scores[run.result.epoch - stretch : run.result.epoch])
    return Trial(run.result, chosen_by, thinned(run.history), facts, _split_facts(run.split))


def thinned(history: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """The curves of a run in few points: each is the mean of a stretch of epochs, and stands at the stretch's last."""
    stretch = -(-len(history) // CURVE_POINTS)
    parts = [history[at : at + stretch] for at in range(0, len(history), stretch)]
    names = [name for name in history[0] if name not in ("epoch", "lr")]
    kept = {name: [float(f"{mean(epoch[name] for epoch in part):.5g}") for part in parts] for name in names}
    return {"epoch": [part[-1]["epoch"] for part in parts], **kept}


def fingerprint(dataset: PackedDataset) -> dict[str, Any]:
    """Counts, and a digest of all tensors: the same for the same graphs, columns and targets."""
    digest = hashlib.blake2b(digest_size=12)
    for field in fields(dataset):
        if isinstance(value := getattr(dataset, field.name), torch.Tensor):
            digest.update(f"{field.name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.cpu().contiguous().numpy().data)
    counts = {"graphs": len(dataset), "nodes": int(dataset.node_ptr[-1]), "edges": len(dataset.source)}
    return {"name": dataset.name, **counts, "digest": digest.hexdigest()}


def _split_facts(split: Split) -> dict[str, Any]:
    parts = [getattr(split, name) for name in PARTS]
    digest = hashlib.blake2b(b"|".join(part.numpy().tobytes() for part in parts), digest_size=12)
    return {**{name: len(part) for name, part in zip(PARTS, parts, strict=True)}, "digest": digest.hexdigest()}


@cache
def _dataset(
    name: str, smiles: str | None, targets: tuple[str, ...] | None, task: str
) -> tuple[PackedDataset, dict[str, Any]]:
    dataset = load_dataset(name, smiles=smiles, targets=targets, task=task)
    return dataset, fingerprint(dataset)


@dataclass(frozen=True)
class Summary:
    """Trials of one recipe, added up. Figures of the task's own metric."""

    trials: int
    test_mean: float
    test_std: float
    valid_mean: float
    parameters: int
    seconds: float
    """Mean training time of a trial."""


def summarise(records: Sequence[dict[str, Any]]) -> Summary:
    results = [record["result"] for record in records]
    test = [result["test"][result["metric"]] for result in results]
    return Summary(
        len(test),
        mean(test),
        stdev(test) if len(test) > 1 else float("nan"),
        mean(result["valid"] for result in results),
        results[0]["parameters"],
        mean(result["seconds"] for result in results),
    )
