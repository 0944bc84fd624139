"""A search for settings: Optuna draws them, validation judges them, and the test part is never scored."""

import gc
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

import torch

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.experiments.engines import RayConfig, follow_parent, on_ray
from mnagt.experiments.trials import fingerprint, rooted, same_data
from mnagt.experiments.tune_space import Range, Space, search_space, with_settings
from mnagt.experiments.tune_study import PATIENCE, Ground, Signs, beating, begin_anew, located, open_study
from mnagt.experiments.tune_study import load_optuna as _optuna
from mnagt.files import alone_with, make_folder
from mnagt.settings import at_least
from mnagt.tasks import Unasked
from mnagt.training.config import RunConfig
from mnagt.training.devices import pick_device, room_on
from mnagt.training.fit import Interrupted, Trainer
from mnagt.training.progress import Reporter
from mnagt.training.run import dataset_of, make_split, prepared, stop_requests

if TYPE_CHECKING:
    import optuna

LOCK, BEST, TRIALS, REPORT = "lock", "best.toml", "trials.csv", "report.html"

REPORTS = 10
"""Times that a training is compared with those before it: each is a write to a storage that all processes share."""
UNJUDGED = 5
"""Finished trials before any is pruned."""
PAUSE = 0.5
"""Seconds between looks at what others are doing, when there is nothing left to begin."""


@dataclass(frozen=True)
class TuneConfig:
    trials: int = 50
    """Trials in all, with those that are there already."""
    seeds: int = 3
    """Trainings of each trial, every one with weights, order and (if drawn) split of its own; their mean counts."""
    jobs: int = 1
    """Trials side by side, each in a process of one thread."""
    timeout: float | None = None
    """Seconds after which no trial is begun."""
    only: tuple[str, ...] | None = None
    """Settings to search, with commas between; the others stay as they are."""
    storage: str | None = None
    """Where trials are kept that several processes or machines share: URL of a database, or FILE of a journal, which
    may lie on a network file system; none for a file in the search's own folder."""
    study: str | None = None
    """The search's name in that storage; none for DATASET-MODEL."""
    patience: float = PATIENCE
    """Seconds after which a trial of another process without a sign of life is lost, and begun anew."""

    def __post_init__(self) -> None:
        at_least(self, 1, "trials", "seeds", "jobs", "patience")
        if self.timeout is not None:
            at_least(self, 0, "timeout")


@dataclass(frozen=True)
class Tried:
    """A trial that is over."""

    number: int
    state: Literal["finished", "pruned", "refused", "lost"]
    """To the end; stopped because most were ahead of it; settings that cannot be trained; ended with its process."""
    settings: dict[str, Any]
    """What was drawn."""
    figure: float | None
    """Mean validation score of the last ``choose_over`` epochs, over the seeds; if pruned, as far as it came."""
    figures: tuple[float, ...]
    """The same for each seed that was finished."""
    epochs: int
    """Epochs trained, all seeds together."""
    seconds: float
    reason: str = ""
    """Why it was refused."""
    is_start: bool = False
    """Its settings are those that the search began with, where the space holds them."""


@dataclass(frozen=True)
class Tuned:
    """A search, as far as it has come."""

    config: RunConfig
    """Where it began."""
    space: Space
    seeds: int
    metric: str
    higher_is_better: bool
    trials: tuple[Tried, ...]
    importances: dict[str, float] = field(default_factory=dict)
    """Share of each setting in what sets good trials apart (PED-ANOVA); empty for a few trials."""

    @property
    def count(self) -> int:
        """Trials, without those that were lost."""
        return sum(trial.state != "lost" for trial in self.trials)

    @property
    def best(self) -> Tried | None:
        """Of the finished trials; of equals, the first."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        return min(finished, key=lambda trial: -self.sign * (trial.figure or 0.0), default=None)

    @property
    def start(self) -> Tried | None:
        """The trial of the settings that the search began with."""
        return next((trial for trial in self.trials if trial.is_start and trial.state != "lost"), None)

    @property
    def recipe(self) -> RunConfig | None:
        """The settings of the best trial."""
        return None if self.best is None else with_settings(self.config, self.best.settings)

    @property
    def sign(self) -> int:
        """1 where a higher figure is better, else -1."""
        return 1 if self.higher_is_better else -1


def tune(
    config: RunConfig,
    out: Path | str,
    *,
    search: TuneConfig | None = None,
    space: Mapping[str, Any] | Path | str | None = None,
    dataset: PackedDataset | None = None,
    ray: RayConfig | None = None,
    told: Callable[[Tried], None] = lambda tried: None,
) -> Tuned:
    """Look for settings better than those of ``config``, which are tried first.

    ``space`` is what a ``[space]`` table holds (``search_space``), or a TOML file with one. The folder ``out`` keeps
    the trials in a SQLite file, and the best recipe, a table and a report beside it. A search that was interrupted,
    even by kill -9, goes on when it is called again: trials under way are begun anew, finished ones are there.

    With ``search.storage`` others may be at the same search, each with an ``out`` of its own: trials are divided, and
    each returns when all are over. With ``ray`` trials run on that cluster.
    """
    from mnagt.experiments.tune_report import write_best, write_report

    search, out = search or TuneConfig(), Path(out)
    if dataset is None:
        dataset, config = dataset_of(config), rooted(config)
    if isinstance(dataset.task, Unasked):
        raise InputError(f"{dataset.name}: no targets to learn from; choose graphs with known answers")
    ground = Ground(config, search_space(config, space, search.only), search.seeds, out, patience=search.patience)
    _optuna()  # better to know now that it is missing
    if search.storage is not None:
        name = search.study or f"{dataset.name}-{config.model}"
        ground = replace(ground, shared=located(search.storage), name=name)
    elif ray is not None and ray.address is not None:
        raise InputError("on a cluster, trials are kept where all its machines reach them: say where, with --storage")
    if ray is None:
        pick_device(config.device)
    for seed in range(search.seeds):
        make_split(ground.seeded(config, seed).split, dataset)
    make_folder(out)
    with alone_with(out / LOCK, f"{out}: another search is at work there; wait for it or choose another --out"):
        study = open_study(ground, dataset)

        def ended(tried: Tried) -> None:
            told(tried)
            write_best(out, _tuned(ground, dataset, study))

        try:
            with stop_requests() as should_stop:  # between trials and steps, and never while the file is written
                _run(ground, dataset, search, ray, study, ended, should_stop)
        finally:
            tuned = replace(_tuned(ground, dataset, study), importances=_importances(study))
            if tuned.trials:
                write_best(out, tuned)
                write_report(out, tuned)
    return tuned


class Watch(Reporter):
    """Tells the study how a trial does, and ends it when most of those before it were ahead at the same point."""

    def __init__(self, trial: "optuna.Trial", score: str, choose_over: int, seeds: int) -> None:
        self.trial, self.score, self.choose_over, self.seeds = trial, score, choose_over, seeds
        self.figures: list[float] = []
        """Of the seeds that are done."""
        self.epochs = 0
        """Epochs trained, all seeds together."""

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        self.length, self.scores = epochs, []

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        self.scores.append(record[self.score])
        self.epochs += 1
        figure, done = mean(self.scores[-self.choose_over :]), len(self.scores)
        so_far = [*self.figures, figure]
        if done == self.length:
            self.figures = so_far
        if len(self.figures) < self.seeds and (done == self.length or done % max(1, self.length // REPORTS) == 0):
            self.trial.report(mean(so_far), self.epochs)
            if self.trial.should_prune():
                raise _optuna().TrialPruned


class Bench:
    """Where a process runs its trials, as long as fewer than ``goal`` are over and it is before ``ends``."""

    def __init__(
        self,
        ground: Ground,
        dataset: PackedDataset,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        goal: int,
        ends: float = float("inf"),
        waits: bool = False,
    ) -> None:
        self.ground, self.dataset, self.should_stop = ground, dataset, should_stop
        self.goal, self.ends, self.waits = goal, ends, waits
        self.storage, self.signs = ground.storage(), Signs(ground.patience)
        self.distributions = {name: _distribution(entry) for name, entry in ground.space.items()}
        self.study = _optuna().load_study(
            study_name=ground.name,
            storage=self.storage,
            pruner=_optuna().pruners.MedianPruner(UNJUDGED, n_warmup_steps=ground.config.train.epochs // 4),
        )

    def drawn(self) -> "optuna.Trial | None":
        """The next trial with its settings, or none if there is nothing left to begin.

        With ``waits``, it stays until those under way elsewhere are over: one of them may be lost, and is then next.
        """
        while time.time() < self.ends:
            if self.should_stop():
                raise Interrupted
            with self.ground.turn(self.storage):
                begin_anew(self.study, self.signs.lost(self.study))
                trials = self.study.get_trials(deepcopy=False)
                states = Counter(trial.state.name for trial in trials)
                over = states["COMPLETE"] + states["PRUNED"]
                if over + states["RUNNING"] < self.goal:
                    new = sum("tries" not in trial.user_attrs for trial in trials)
                    index = new - states["WAITING"]  # what it would be if no trial had been lost
                    seed = (self.ground.config.train.seed * 1_000_003 + index) % 2**32
                    self.study.sampler = _optuna().samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
                    return self.study.ask(self.distributions)
            if over >= self.goal or not self.waits:
                break
            time.sleep(PAUSE)
        return None

    def trial(self) -> Tried | None:
        """Draw settings, train them with every seed, and write down what came of it; none if there are no more."""
        trial = self.drawn()
        if trial is None:
            return None
        optuna, ground = _optuna(), self.ground
        watch = Watch(trial, f"valid_{self.dataset.task.metric}", ground.config.train.choose_over, ground.seeds)
        figure, reason = None, ""
        try:
            config = with_settings(ground.config, trial.params)
            with beating(trial, ground.patience):
                for number in range(ground.seeds):
                    self.train(ground.seeded(config, number), watch)
            figure = mean(watch.figures)
        except optuna.TrialPruned:
            pass
        except optuna.exceptions.UpdateFinishedTrialError:  # others had waited for a sign long enough
            return _tried(self.study.trials[trial.number])
        except InputError as error:
            if trial.user_attrs.get("start"):
                raise
            reason = str(error)
        finally:
            if torch.cuda.is_initialized():  # a training holds on to itself, and to its place on the GPU
                gc.collect()
                torch.cuda.empty_cache()
        state = optuna.trial.TrialState.PRUNED if figure is None else optuna.trial.TrialState.COMPLETE
        with ground.turn(self.storage):
            if not self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                trial.set_user_attr("told", {"figures": watch.figures, "epochs": watch.epochs, "reason": reason})
            return _tried(self.study.tell(trial, figure, state, skip_if_finished=True))

    def train(self, config: RunConfig, reporter: Reporter) -> None:
        """Train on the training part and judge by the validation part, epoch by epoch."""
        split, device = make_split(config.split, self.dataset), pick_device(config.device)
        model, dataset, task = prepared(config, self.dataset, split)
        with room_on(device, config):
            Trainer(
                model,
                dataset,
                split,
                task,
                config.train,
                device=device,
                reporter=reporter,
                should_stop=self.should_stop,
            ).run()


def _run(
    ground: Ground,
    dataset: PackedDataset,
    search: TuneConfig,
    ray: RayConfig | None,
    study: "optuna.Study",
    ended: Callable[[Tried], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run the trials that are missing, and tell of each that ends."""
    ends = time.time() + float("inf" if search.timeout is None else search.timeout)
    how = {"goal": search.trials, "ends": ends, "waits": ground.shared is not None or ray is not None}
    if ray is not None:
        _run_on_ray(ground, dataset, ray, how, study, ended, should_stop)
    elif search.jobs == 1:
        bench = Bench(ground, dataset, should_stop, **how)
        while (tried := bench.trial()) is not None:
            ended(tried)
    else:
        _run_side_by_side(ground, dataset, search.jobs, how, ended, should_stop)


def _run_side_by_side(
    ground: Ground,
    dataset: PackedDataset,
    jobs: int,
    how: dict[str, Any],
    ended: Callable[[Tried], None],
    should_stop: Callable[[], bool],
) -> None:
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    with ProcessPoolExecutor(jobs, spawn, _set_up, (ground, dataset, stop, how)) as pool:
        running = {pool.submit(_next_trial) for _ in range(jobs)}
        try:
            while running:
                done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                if should_stop():
                    raise Interrupted
                for tried in (trial.result() for trial in done):
                    if tried is not None:
                        ended(tried)
                        running.add(pool.submit(_next_trial))
        except BrokenProcessPool:
            raise InputError(
                f"the process of a trial was ended from outside (no memory left?); trials are kept in {ground.where}: "
                "go on with fewer --jobs"
            ) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


_bench: Bench | None = None
"""Of this process, if it is one of several."""


def _set_up(ground: Ground, dataset: PackedDataset, stop: Any, how: dict[str, Any]) -> None:
    """Begin a process for trials. Ctrl-C is for its parent, which says when to stop; it does not outlive its parent."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()
    torch.set_num_threads(1)
    _bench = Bench(ground, dataset, stop.is_set, **how)


def _next_trial() -> Tried | None:
    assert _bench is not None
    return _bench.trial()


def _run_on_ray(
    ground: Ground,
    dataset: PackedDataset,
    ray: RayConfig,
    how: dict[str, Any],
    study: "optuna.Study",
    ended: Callable[[Tried], None],
    should_stop: Callable[[], bool],
) -> None:
    def look() -> None:
        if should_stop():
            raise Interrupted

    states = Counter(trial.state.name for trial in study.get_trials(deepcopy=False))
    errands = range(how["goal"] - states["COMPLETE"] - states["PRUNED"])
    there = replace(ground, folder=ground.folder.resolve())
    work = partial(_trial_elsewhere, there, fingerprint(dataset), how)
    with on_ray(work, errands, ray, device=lambda _: ground.config.device, while_waiting=look) as outcomes:
        for tried in (outcome() for _, outcome in outcomes):
            if tried is not None:
                ended(tried)


def _trial_elsewhere(ground: Ground, facts: dict[str, Any], how: dict[str, Any], errand: int) -> Tried | None:
    """A trial on a worker, which reads the data set from where its own machine keeps it."""
    global _bench
    if _bench is None:
        dataset = dataset_of(ground.config)
        same_data(fingerprint(dataset), facts)
        _bench = Bench(ground, dataset, **how)
    while (tried := _bench.trial()) is not None and tried.state == "lost":
        pass
    return tried


# --- the study ---


def _distribution(entry: Range | tuple) -> "optuna.distributions.BaseDistribution":
    kinds = _optuna().distributions
    if not isinstance(entry, Range):
        return kinds.CategoricalDistribution(entry)
    kind = kinds.IntDistribution if isinstance(entry.low, int) else kinds.FloatDistribution
    return kind(entry.low, entry.high, log=entry.log)


def _tried(trial: "optuna.trial.FrozenTrial") -> Tried:
    told, spent = trial.user_attrs.get("told", {}), trial.duration
    reason = told.get("reason", "")
    state: Any = {"COMPLETE": "finished", "PRUNED": "refused" if reason else "pruned"}.get(trial.state.name, "lost")
    return Tried(
        trial.number,
        state,
        trial.params,
        trial.value,
        tuple(told.get("figures", ())),
        told.get("epochs", 0),
        0.0 if spent is None else round(spent.total_seconds(), 3),
        reason,
        trial.user_attrs.get("start", False),
    )


def _tuned(ground: Ground, dataset: PackedDataset, study: "optuna.Study") -> Tuned:
    task, trials = dataset.task, [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]
    tried = tuple(_tried(trial) for trial in trials)
    return Tuned(ground.config, ground.space, ground.seeds, task.metric, task.higher_is_better, tried)


def _importances(study: "optuna.Study") -> dict[str, float]:
    optuna = _optuna()
    finished = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(finished) < 2 * UNJUDGED or len({trial.value for trial in finished}) == 1:
        return {}
    return optuna.importance.get_param_importances(study)
