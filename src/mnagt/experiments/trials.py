"""Many trials of a few recipes: seeds side by side in processes or on a cluster, finished ones kept in a ledger."""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from mnagt.data import DATASETS, load_dataset
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import PARTS, Split
from mnagt.errors import InputError
from mnagt.experiments.engines import Outcomes, RayConfig, on_ray, side_by_side
from mnagt.experiments.ledger import Ledger, circumstances, trial_key
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
    ran_on: dict[str, Any] | None = None
    """Machine and versions, where they are not those of who writes it down."""


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The same run with other weights, order and split."""
    return replace(config, train=replace(config.train, seed=seed), split=replace(config.split, seed=seed))


def run_trials(
    configs: Iterable[RunConfig],
    ledger: Ledger,
    *,
    jobs: int = 1,
    devices: Sequence[str] = (),
    ray: RayConfig | None = None,
    told: Callable[[RunConfig, dict[str, Any]], None] = lambda config, record: None,
    failed: Callable[[RunConfig, Exception], None] | None = None,
    reporter: Reporter | None = None,
    until: float = math.inf,
) -> list[dict[str, Any]]:
    """The records of these trials, in order; those that the ledger lacks are run now, ``jobs`` at a time or on ``ray``.

    They take turns on ``devices``, if any are named. Only this process writes to the ledger. A trial that fails ends
    it all; with ``failed`` that is told instead, and the others go on. ``reporter`` is shown trials that run one at a
    time. After ``until`` (``time.time()``) none is begun; those under way come to their end.
    """
    configs = list(configs)
    there = ledger.by_key()
    missing = list({key: config for config in configs if (key := trial_key(config)) not in there}.values())
    if missing:
        ledger.check()
    if devices:
        missing = [replace(config, device=devices[i % len(devices)]) for i, config in enumerate(missing)]
    with _outcomes(missing, jobs, ray, reporter, until) as outcomes:
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
            if trial is None:
                continue
            beside = {name: getattr(trial, name) for name in ("chosen_by", "curves", "dataset", "split")}
            beside |= {"side_by_side": jobs} if ray is None else {"ran_on": trial.ran_on}
            told(config, ledger.append(config, trial.result, **beside))
    there = ledger.by_key()
    return [there[key] for config in configs if (key := trial_key(config)) in there]


@contextmanager
def _outcomes(
    configs: Sequence[RunConfig], jobs: int, ray: RayConfig | None, reporter: Reporter | None, until: float
) -> Iterator[Outcomes[RunConfig, Trial | None]]:
    """Each trial with what gives its outcome, as they end; none of those that it was too late to begin."""
    if ray is not None and configs:
        errands = [(config, rooted(config), _dataset(config)[1]) for config in configs]
        with on_ray(
            partial(_unless_late, until, _run_elsewhere), errands, ray, device=lambda errand: errand[0].device
        ) as outcomes:
            yield ((config, outcome) for (config, _, _), outcome in outcomes)
    elif jobs == 1 or not configs:
        yield ((config, partial(_unless_late, until, run_trial, config, reporter)) for config in configs)
    else:
        with side_by_side(partial(_unless_late, until, run_trial), configs, jobs) as outcomes:
            yield outcomes


def _unless_late(until: float, run: Callable[..., Trial], *given: Any) -> Trial | None:
    return None if time.time() > until else run(*given)


def rooted(config: RunConfig) -> RunConfig:
    """The same run with paths that hold from elsewhere too."""
    path, folder = Path(config.dataset).expanduser(), config.split.folder
    if config.dataset not in DATASETS and path.exists():
        config = replace(config, dataset=str(path.resolve()))
    if folder is not None:
        config = replace(config, split=replace(config.split, folder=str(Path(folder).resolve())))
    return config


def _run_elsewhere(errand: tuple[RunConfig, RunConfig, dict[str, Any]]) -> Trial:
    """Run a trial on a worker, which reads the data set from where its own machine keeps it."""
    _, config, facts = errand
    same_data(_dataset(config)[1], facts)
    about = circumstances()
    return replace(run_trial(config), ran_on={name: about[name] for name in ("machine", "versions")})


def same_data(there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to work on other graphs than were asked about."""
    if there != here:
        raise InputError(f"has {there}, and where it is asked for it is {here}; put the same files into its MNAGT_DATA")


def run_trial(config: RunConfig, reporter: Reporter | None = None) -> Trial:
    dataset, facts = _dataset(config)
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


def _dataset(config: RunConfig) -> tuple[PackedDataset, dict[str, Any]]:
    return _loaded(config.dataset, config.smiles, config.targets, config.task, config.split.column)


@cache
def _loaded(
    name: str, smiles: str | None, targets: tuple[str, ...] | None, task: str, group: str | None
) -> tuple[PackedDataset, dict[str, Any]]:
    dataset = load_dataset(name, smiles=smiles, targets=targets, task=task, group=group)
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
