"""A search for settings: Optuna draws them, every seed trains them, validation scores them; test is never scored."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from mnagt.data.packed import PackedDataset
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.experiments.config import RayConfig
from mnagt.experiments.executors import run_parallel
from mnagt.experiments.trials import check_same_data, with_absolute_paths
from mnagt.experiments.tune_result import (
    OUTCOME,
    REPORT,
    START,
    TrialResult,
    TuneResult,
    build_page,
    read_trial,
    write_best,
)
from mnagt.experiments.tune_space import Range, search_space, with_settings
from mnagt.experiments.tune_study import (
    STUDY,
    Heartbeats,
    Search,
    TuneConfig,
    import_optuna,
    open_study,
    resolve_storage,
)
from mnagt.files import hold_lock, make_folder, write_text
from mnagt.runs.config import RunConfig
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.folder import load_run_dataset
from mnagt.runs.split import make_split
from mnagt.training.fit_model import fit_model
from mnagt.training.progress import Reporter
from mnagt.training.run import stop_requests
from mnagt.training.several_runs import shift_seeds
from mnagt.training.trainer import Interrupted

if TYPE_CHECKING:
    import optuna

LOCK = "lock"
COMPARISONS = 10
"""Times that a training is compared with earlier ones. Each is a write to a storage that all processes share."""
MIN_FINISHED = 5
"""Finished trials before any is pruned."""
POLL_SECONDS = 0.5
"""Time between looks at the trials of other processes, when there is nothing left to start."""


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
    space = search_space(config, space, options.only)
    import_optuna()  # better to know now that it is missing
    storage, name, is_shared = f"sqlite:///{(out / STUDY).resolve()}", STUDY, options.storage is not None
    if options.storage is not None:
        storage, name = resolve_storage(options.storage), options.study or f"{dataset.name}-{config.model}"
    elif ray is not None and ray.address is not None:
        raise InputError("on a cluster, trials are kept where all its machines reach them: say where, with --storage")
    if ray is None:
        pick_device(config.device)
    for seed in range(options.seeds):
        make_split(shift_seeds(config, seed).split, dataset)
    deadline = time.time() + float("inf" if options.timeout is None else options.timeout)
    terms = Search(config, space, options, storage, name, is_shared, deadline, is_shared or ray is not None)
    make_folder(out)
    with hold_lock(out / LOCK, f"{out}: another search is running there; wait for it or choose another --out"):
        study = open_study(terms, dataset)

        def on_end(trial: TrialResult) -> None:
            on_trial(trial)
            write_best(out, _read_result(terms, dataset, study))

        try:
            with stop_requests() as should_stop:  # between trials and steps, and never while the file is written
                _run(terms, dataset, ray, study, on_end, should_stop)
        finally:
            result = replace(_read_result(terms, dataset, study), importances=_importances(study))
            if result.trials:
                write_best(out, result)
                write_text(out / REPORT, build_page(result))
    return result


def _run(
    search: Search,
    dataset: PackedDataset,
    ray: RayConfig | None,
    study: "optuna.Study",
    on_end: Callable[[TrialResult], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run the trials that are missing, and call ``on_end`` with each that ends."""

    def check_stop() -> None:
        if should_stop():
            raise Interrupted

    states = Counter(trial.state.name for trial in study.get_trials(deepcopy=False))
    missing = range(search.options.trials - states["COMPLETE"] - states["PRUNED"])
    jobs, set_up = search.options.jobs, partial(_set_up, search, dataset)
    with run_parallel(
        partial(_run_next, search, dataset_fingerprint(dataset) if ray else {}),
        missing,
        jobs=jobs,
        ray=ray,
        device=lambda _: search.config.device,
        set_up=partial(set_up, should_stop) if ray is None and jobs == 1 else set_up,
        while_waiting=check_stop,
        kept=f"finished trials are in {search.storage_name}",
    ) as outcomes:
        for _, outcome in outcomes:
            if (trial := outcome()) is not None:
                on_end(trial)


_runner: "TrialRunner | None" = None
"""Of this process."""


def _set_up(search: Search, dataset: PackedDataset, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Prepare a process of this machine for trials."""
    global _runner
    _runner = TrialRunner(search, dataset, should_stop)


def _run_next(search: Search, fingerprint: dict[str, Any], number: int) -> TrialResult | None:
    """Run trials until one is not lost. A worker of a cluster reads the data set from where its machine keeps it."""
    global _runner
    if _runner is None:
        dataset = load_run_dataset(search.config)
        check_same_data(dataset_fingerprint(dataset), fingerprint)
        _runner = TrialRunner(search, dataset)
    while (trial := _runner.run()) is not None and trial.state == "lost":
        pass
    return trial


def _read_result(search: Search, dataset: PackedDataset, study: "optuna.Study") -> TuneResult:
    trials = tuple(read_trial(trial) for trial in study.get_trials(deepcopy=False) if trial.state.is_finished())
    task = dataset.task.with_metric(search.config.train.metric)
    return TuneResult(search.config, search.space, search.options.seeds, task.metric, task.higher_is_better, trials)


def _importances(study: "optuna.Study") -> dict[str, float]:
    """Importance of each setting (PED-ANOVA), once there are trials enough to tell."""
    optuna = import_optuna()
    finished = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(finished) < 2 * MIN_FINISHED or len({trial.value for trial in finished}) == 1:
        return {}
    return optuna.importance.get_param_importances(study)


# --- trials ---


class PruningReporter(Reporter):
    """Reports the score of a trial to the study, and prunes it when most earlier ones were ahead at the same epoch.

    Args:
        trial: The trial.
        score: Name of the score in the records of epochs.
        window: Number of last epochs whose mean is the score of a training.
        seeds: Number of trainings of the trial.
    """

    def __init__(self, trial: "optuna.Trial", score: str, window: int, seeds: int) -> None:
        self.trial, self.score, self.window, self.seeds = trial, score, window, seeds
        self.scores: list[float] = []
        """Of the trainings that are done."""
        self.epochs = 0
        """Epochs trained, all seeds together."""

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        self._length, self._epoch_scores = epochs, []

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        self._epoch_scores.append(record[self.score])
        self.epochs += 1
        done = len(self._epoch_scores)
        scores = [*self.scores, mean(self._epoch_scores[-self.window :])]
        if done == self._length:
            self.scores = scores
        is_due = done == self._length or done % max(1, self._length // COMPARISONS) == 0
        if len(self.scores) < self.seeds and is_due:
            self.trial.report(mean(scores), self.epochs)
            if self.trial.should_prune():
                raise import_optuna().TrialPruned


class TrialRunner:
    """Runs trials of ``search`` in this process, one after another."""

    def __init__(self, search: Search, dataset: PackedDataset, should_stop: Callable[[], bool] = lambda: False) -> None:
        self.search, self.dataset, self.should_stop = search, dataset, should_stop
        self.storage = search.connect()
        self.distributions = {name: _distribution(entry) for name, entry in search.space.items()}
        self.study = import_optuna().load_study(
            study_name=search.name,
            storage=self.storage,
            pruner=import_optuna().pruners.MedianPruner(MIN_FINISHED, n_warmup_steps=search.config.train.epochs // 4),
        )
        self.heartbeats = Heartbeats(self.study, search.options.heartbeat_timeout)

    def ask(self) -> "optuna.Trial | None":
        """The next trial with its settings, or none if there is nothing left to start."""
        wanted = self.search.options.trials
        while time.time() < self.search.deadline:
            if self.should_stop():
                raise Interrupted
            with self.search.lock(self.storage):
                self.heartbeats.retry_lost()
                trials = self.study.get_trials(deepcopy=False)
                states = Counter(trial.state.name for trial in trials)
                over = states["COMPLETE"] + states["PRUNED"]
                if over + states["RUNNING"] < wanted:
                    self.study.sampler = self._sampler(trials)
                    return self.study.ask(self.distributions)
            if over >= wanted or not self.search.waits_for_others:
                break
            time.sleep(POLL_SECONDS)
        return None

    def _sampler(self, trials: "list[optuna.trial.FrozenTrial]") -> "optuna.samplers.BaseSampler":
        """Seeded by the number that the next trial would have if none had been lost, or were waiting."""
        new = sum("tries" not in trial.user_attrs and "retry_history" not in trial.system_attrs for trial in trials)
        index = new - sum(trial.state.name == "WAITING" for trial in trials)
        seed = (self.search.config.train.seed * 1_000_003 + index) % 2**32
        return import_optuna().samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def run(self) -> TrialResult | None:
        """Draw settings, train them with every seed, and store the result; none if there is nothing left to start."""
        trial = self.ask()
        if trial is None:
            return None
        optuna, search = import_optuna(), self.search
        train = search.config.train
        metric, window = self.dataset.task.with_metric(train.metric).metric, train.selection_window
        reporter = PruningReporter(trial, f"valid_{metric}", window, search.options.seeds)
        score, reason = None, ""
        try:
            config = with_settings(search.config, trial.params)
            with self.heartbeats.keep(trial):
                for number in range(search.options.seeds):
                    self.train(shift_seeds(config, number), reporter)
            score = mean(reporter.scores)
        except optuna.TrialPruned:
            pass
        except optuna.exceptions.UpdateFinishedTrialError:  # others had waited for a heartbeat long enough
            return read_trial(self.study.trials[trial.number])
        except InputError as error:
            if trial.user_attrs.get(START):
                raise
            reason = str(error)
        finally:
            if torch.cuda.is_initialized():  # a training holds on to itself, and to its place on the GPU
                gc.collect()
                torch.cuda.empty_cache()
        outcome = {"figures": reporter.scores, "epochs": reporter.epochs, "reason": reason}
        return self.tell(trial, score, outcome)

    def tell(self, trial: "optuna.Trial", score: float | None, outcome: dict[str, Any]) -> TrialResult:
        """Store the result of a trial, unless it was given up meanwhile."""
        states = import_optuna().trial.TrialState
        with self.search.lock(self.storage):
            if not self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                trial.set_user_attr(OUTCOME, outcome)
            state = states.PRUNED if score is None else states.COMPLETE
            return read_trial(self.study.tell(trial, score, state, skip_if_finished=True))

    def train(self, config: RunConfig, reporter: Reporter) -> None:
        """Train on the training part and score the validation part after each epoch."""
        split = make_split(config.split, self.dataset)
        fit_model(config, self.dataset, split, reporter=reporter, should_stop=self.should_stop, with_forest=False)


def _distribution(entry: Range | tuple) -> "optuna.distributions.BaseDistribution":
    kinds = import_optuna().distributions
    if not isinstance(entry, Range):
        return kinds.CategoricalDistribution(entry)
    kind = kinds.IntDistribution if isinstance(entry.low, int) else kinds.FloatDistribution
    return kind(entry.low, entry.high, log=entry.log)
