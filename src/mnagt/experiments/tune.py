"""A search for settings: Optuna draws them, validation scores them, and the test part is never scored."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mnagt.data.packed import PackedDataset
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.experiments.executors import RayConfig, run_parallel
from mnagt.experiments.trials import check_same_data, with_absolute_paths
from mnagt.experiments.tune_report import write_best, write_report
from mnagt.experiments.tune_result import TrialResult, TuneResult, read_trial
from mnagt.experiments.tune_space import search_space
from mnagt.experiments.tune_study import PATIENCE, Search, import_optuna, open_study, resolve_storage
from mnagt.experiments.tune_trials import MIN_FINISHED, Budget, TrialRunner
from mnagt.files import hold_lock, make_folder
from mnagt.runs.config import RunConfig
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.folder import load_run_dataset
from mnagt.runs.split import make_split
from mnagt.settings import Ge, PositiveInt, Settings
from mnagt.training.run import stop_requests
from mnagt.training.trainer import Interrupted

if TYPE_CHECKING:
    import optuna

LOCK = "lock"


@dataclass(frozen=True)
class TuneConfig(Settings):
    trials: PositiveInt = 50
    """Trials in all, with those that are there already."""
    seeds: PositiveInt = 3
    """Trainings of each trial, every one with weights, order and (if drawn) split of its own; their mean counts."""
    jobs: PositiveInt = 1
    """Trials that run at a time, each in a process of one thread."""
    timeout: Annotated[float, Ge(0)] | None = None
    """Seconds after which no trial is started."""
    only: tuple[str, ...] | None = None
    """Settings to search, with commas between; the others stay as they are."""
    storage: str | None = None
    """Where trials are kept that several processes or machines share: URL of a database, or FILE of a journal, which
    may lie on a network file system; none for a file in the search's own folder."""
    study: str | None = None
    """Name of the search in that storage; none for DATASET-MODEL."""
    patience: Annotated[float, Ge(1)] = PATIENCE
    """Seconds after which a trial of another process without a heartbeat is lost, and started again."""


def tune(
    config: RunConfig,
    out: Path | str,
    *,
    search: TuneConfig | None = None,
    space: Mapping[str, Any] | Path | str | None = None,
    dataset: PackedDataset | None = None,
    ray: RayConfig | None = None,
    on_trial: Callable[[TrialResult], None] = lambda trial: None,
) -> TuneResult:
    """Search for settings better than those of ``config``, which are tried first.

    A search that was interrupted, even by kill -9, goes on when it is called again: finished trials are kept, and
    those that were running are started again.

    Args:
        config: The settings to begin with.
        out: Folder for the trials (a SQLite file), the best recipe, a table and a report.
        search: Numbers of trials and seeds, storage, and so on.
        space: What a ``[space]`` table holds (``search_space``), or a TOML file with one.
        dataset: The data set, if it is not to be loaded by its name.
        ray: The cluster that runs the trials. With it, or with ``search.storage``, others may work on the same search,
            each with its own ``out``: trials are divided, and each call returns when all are over.
        on_trial: Called with each trial of this call that ends.
    """
    options, out = search or TuneConfig(), Path(out)
    if dataset is None:
        dataset, config = load_run_dataset(config), with_absolute_paths(config)
    if not dataset.task.is_labelled:
        raise InputError(f"{dataset.name}: no targets to learn from; choose graphs with known targets")
    shared = Search(config, search_space(config, space, options.only), options.seeds, out, patience=options.patience)
    import_optuna()  # better to know now that it is missing
    if options.storage is not None:
        name = options.study or f"{dataset.name}-{config.model}"
        shared = replace(shared, shared=resolve_storage(options.storage), name=name)
    elif ray is not None and ray.address is not None:
        raise InputError("on a cluster, trials are kept where all its machines reach them: say where, with --storage")
    if ray is None:
        pick_device(config.device)
    for seed in range(options.seeds):
        make_split(shared.with_seed(config, seed).split, dataset)
    make_folder(out)
    with hold_lock(out / LOCK, f"{out}: another search is running there; wait for it or choose another --out"):
        study = open_study(shared, dataset)

        def on_end(trial: TrialResult) -> None:
            on_trial(trial)
            write_best(out, _read_result(shared, dataset, study))

        try:
            with stop_requests() as should_stop:  # between trials and steps, and never while the file is written
                _run(shared, dataset, options, ray, study, on_end, should_stop)
        finally:
            result = replace(_read_result(shared, dataset, study), importances=_importances(study))
            if result.trials:
                write_best(out, result)
                write_report(out, result)
    return result


def _run(
    search: Search,
    dataset: PackedDataset,
    options: TuneConfig,
    ray: RayConfig | None,
    study: "optuna.Study",
    on_end: Callable[[TrialResult], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run the trials that are missing, and call ``on_end`` with each that ends."""
    deadline = time.time() + float("inf" if options.timeout is None else options.timeout)
    budget = Budget(options.trials, deadline, waits_for_others=search.shared is not None or ray is not None)
    if ray is None and options.jobs == 1:
        runner = TrialRunner(search, dataset, budget, should_stop)
        while (trial := runner.run()) is not None:
            on_end(trial)
        return

    def check_stop() -> None:
        if should_stop():
            raise Interrupted

    states = Counter(trial.state.name for trial in study.get_trials(deepcopy=False))
    missing = range(options.trials - states["COMPLETE"] - states["PRUNED"])
    remote = replace(search, folder=search.folder.resolve())
    with run_parallel(
        partial(_run_next, remote, dataset_fingerprint(dataset), budget),
        missing,
        jobs=options.jobs,
        ray=ray,
        device=lambda _: search.config.device,
        set_up=partial(_set_up, search, dataset, budget),
        while_waiting=check_stop,
    ) as outcomes:
        for _, outcome in outcomes:
            try:
                trial = outcome()
            except BrokenExecutor:
                raise InputError(
                    f"the process of a trial was ended from outside (no memory left?); trials are kept in "
                    f"{search.storage_name}: go on with fewer --jobs"
                ) from None
            if trial is not None:
                on_end(trial)


_runner: TrialRunner | None = None
"""Of this process, if it is one of several."""


def _set_up(search: Search, dataset: PackedDataset, budget: Budget) -> None:
    """Prepare a process of this machine for trials."""
    global _runner
    _runner = TrialRunner(search, dataset, budget)


def _run_next(search: Search, fingerprint: dict[str, Any], budget: Budget, number: int) -> TrialResult | None:
    """Run trials until one is not lost. A worker of a cluster reads the data set from where its machine keeps it."""
    global _runner
    if _runner is None:
        dataset = load_run_dataset(search.config)
        check_same_data(dataset_fingerprint(dataset), fingerprint)
        _runner = TrialRunner(search, dataset, budget)
    while (trial := _runner.run()) is not None and trial.state == "lost":
        pass
    return trial


def _read_result(search: Search, dataset: PackedDataset, study: "optuna.Study") -> TuneResult:
    trials = tuple(read_trial(trial) for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
    task = dataset.task
    return TuneResult(search.config, search.space, search.seeds, task.metric, task.higher_is_better, trials)


def _importances(study: "optuna.Study") -> dict[str, float]:
    """Importance of each setting (PED-ANOVA), once there are trials enough to tell."""
    optuna = import_optuna()
    finished = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(finished) < 2 * MIN_FINISHED or len({trial.value for trial in finished}) == 1:
        return {}
    return optuna.importance.get_param_importances(study)
