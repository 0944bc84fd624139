"""Many trials of a few recipes: seeds side by side in processes, finished ones kept in a ledger."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean, stdev
from typing import Any

import torch

from mnagt.data import load_dataset
from mnagt.data.packed import PackedDataset
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.training.config import RunConfig
from mnagt.training.run import Result, train


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The same run with other weights, order and split."""
    return replace(config, train=replace(config.train, seed=seed), split=replace(config.split, seed=seed))


def run_trials(
    configs: Iterable[RunConfig],
    ledger: Ledger,
    *,
    jobs: int = 1,
    told: Callable[[RunConfig, dict[str, Any]], None] = lambda config, record: None,
) -> list[dict[str, Any]]:
    """The records of these trials, in order; those that the ledger lacks are run now, ``jobs`` at a time."""
    configs = list(configs)
    there = ledger.by_key()
    missing = {key: config for config in configs if (key := trial_key(config)) not in there}.values()
    if missing:
        ledger.check()
    if jobs == 1:
        for config in missing:
            told(config, ledger.append(config, run_trial(config)))
    else:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_one_thread) as pool:
            running = {pool.submit(run_trial, config): config for config in missing}
            try:
                for done in as_completed(running):
                    told(running[done], ledger.append(running[done], done.result()))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    there = ledger.by_key()
    return [there[trial_key(config)] for config in configs]


def run_trial(config: RunConfig) -> Result:
    return train(config, dataset=_dataset(config.dataset)).result


@cache
def _dataset(name: str) -> PackedDataset:
    return load_dataset(name)


def _one_thread() -> None:
    torch.set_num_threads(1)


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
