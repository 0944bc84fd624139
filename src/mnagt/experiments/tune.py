"""A search for settings: Optuna draws them, validation judges them, and the test part is never scored."""

import fcntl
import gc
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

import torch

from mnagt.data import DATASETS
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.experiments.ledger import resolved
from mnagt.experiments.tune_space import Range, Space, search_space, start_of, with_settings
from mnagt.files import make_folder
from mnagt.settings import at_least, from_dict
from mnagt.tasks import Unasked
from mnagt.training.config import RunConfig
from mnagt.training.devices import pick_device, room_on
from mnagt.training.fit import Interrupted, Trainer
from mnagt.training.progress import Reporter
from mnagt.training.run import dataset_of, make_split, prepared, stop_requests

if TYPE_CHECKING:
    import optuna

STUDY, LOCK, BEST, TRIALS, REPORT = "study.db", "lock", "best.toml", "trials.csv", "report.html"

REPORTS = 10
"""Times that a training is compared with those before it: each is a write to a file that all processes share."""
UNJUDGED = 5
"""Finished trials before any is pruned."""
TRIES = 3
"""Times that a trial is begun; one that never ends may be what ends the process."""


@dataclass(frozen=True)
class TuneConfig:
    trials: int = 50
    """Trials in all, with those that the folder holds already."""
    seeds: int = 3
    """Trainings of each trial, every one with weights, order and (if drawn) split of its own; their mean counts."""
    jobs: int = 1
    """Trials side by side, each in a process of one thread."""
    timeout: float | None = None
    """Seconds after which no trial is begun."""
    only: tuple[str, ...] | None = None
    """Settings to search, with commas between; the others stay as they are."""

    def __post_init__(self) -> None:
        at_least(self, 1, "trials", "seeds", "jobs")
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
    told: Callable[[Tried], None] = lambda tried: None,
) -> Tuned:
    """Look for settings better than those of ``config``, which are tried first.

    ``space`` is what a ``[space]`` table holds (``search_space``), or a TOML file with one. The folder ``out`` keeps
    the trials in a SQLite file, and the best recipe, a table and a report beside it. A search that was interrupted,
    even by kill -9, goes on when it is called again: trials under way are begun anew, finished ones are there.
    """
    from mnagt.experiments.tune_report import write_best, write_report

    search, out = search or TuneConfig(), Path(out)
    if dataset is None:
        dataset, path = dataset_of(config), Path(config.dataset).expanduser()
        if config.dataset not in DATASETS and path.exists():  # must hold from elsewhere too
            config = replace(config, dataset=str(path.resolve()))
    if isinstance(dataset.task, Unasked):
        raise InputError(f"{dataset.name}: no targets to learn from; choose graphs with known answers")
    ground = Ground(config, search_space(config, space, search.only), search.seeds, out)
    _optuna()  # better to know now that it is missing
    pick_device(config.device)
    for seed in range(search.seeds):
        make_split(ground.seeded(config, seed).split, dataset)
    with _alone(out):
        study = open_study(ground, dataset)

        def ended(tried: Tried) -> None:
            told(tried)
            write_best(out, _tuned(ground, dataset, study))

        try:
            with stop_requests() as should_stop:  # between trials and steps, and never while the file is written
                _run(ground, dataset, search, study, ended, should_stop)
        finally:
            tuned = replace(_tuned(ground, dataset, study), importances=_importances(study))
            if tuned.trials:
                write_best(out, tuned)
                write_report(out, tuned)
    return tuned


@dataclass(frozen=True)
class Ground:
    """What all trials of a search have in common."""

    config: RunConfig
    space: Space
    seeds: int
    folder: Path

    def seeded(self, config: RunConfig, number: int) -> RunConfig:
        """The run of a trial with its seed ``number``: other weights, order and split."""
        train, split = config.train, config.split
        return replace(
            config, train=replace(train, seed=train.seed + number), split=replace(split, seed=split.seed + number)
        )

    def told(self, dataset: PackedDataset) -> dict[str, Any]:
        """What must be the same for trials to be compared."""
        space = {n: asdict(entry) if isinstance(entry, Range) else list(entry) for n, entry in self.space.items()}
        return {"run": resolved(self.config), "graphs": len(dataset), "seeds": self.seeds, "space": space}

    def storage(self) -> "optuna.storages.BaseStorage":
        """The file of trials. Processes wait for each other to write."""
        url, waits = f"sqlite:///{self.folder / STUDY}", {"connect_args": {"timeout": 100}}
        return _optuna().storages.RDBStorage(url, waits)


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
    """Where a process runs its trials. ``turn`` lets one process at a time draw settings: SQLite would hand the same
    waiting trial to two."""

    def __init__(
        self,
        ground: Ground,
        dataset: PackedDataset,
        should_stop: Callable[[], bool],
        turn: AbstractContextManager,
    ) -> None:
        self.ground, self.dataset, self.should_stop, self.turn = ground, dataset, should_stop, turn
        self.storage = ground.storage()
        self.distributions = {name: _distribution(entry) for name, entry in ground.space.items()}

    def trial(self, index: int) -> Tried:
        """Draw settings, train them with every seed, and write down what came of it. Chance comes from ``index``."""
        if self.should_stop():
            raise Interrupted
        optuna, ground = _optuna(), self.ground
        seed = (ground.config.train.seed * 1_000_003 + index) % 2**32
        study = optuna.load_study(
            study_name=STUDY,
            storage=self.storage,
            sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
            pruner=optuna.pruners.MedianPruner(UNJUDGED, n_warmup_steps=ground.config.train.epochs // 4),
        )
        with self.turn:
            trial = study.ask(self.distributions)
        watch = Watch(trial, f"valid_{self.dataset.task.metric}", ground.config.train.choose_over, ground.seeds)
        figure, reason = None, ""
        try:
            config = with_settings(ground.config, trial.params)
            for number in range(ground.seeds):
                self.train(ground.seeded(config, number), watch)
            figure = mean(watch.figures)
        except optuna.TrialPruned:
            pass
        except InputError as error:
            if trial.user_attrs.get("start"):
                raise
            reason = str(error)
        finally:
            if torch.cuda.is_initialized():  # a training holds on to itself, and to its place on the GPU
                gc.collect()
                torch.cuda.empty_cache()
        trial.set_user_attr("told", {"figures": watch.figures, "epochs": watch.epochs, "reason": reason})
        state = optuna.trial.TrialState.PRUNED if figure is None else optuna.trial.TrialState.COMPLETE
        return _tried(study.tell(trial, figure, state))

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
    study: "optuna.Study",
    ended: Callable[[Tried], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run the trials that are missing, and tell of each that ends."""
    trials = study.get_trials(deepcopy=False)
    states = [trial.state.name for trial in trials]
    new = [trial for trial in trials if "tries" not in trial.user_attrs]
    first = len(new) - states.count("WAITING")  # the index that would be next if no trial had been lost
    indices = range(first, first + search.trials - states.count("COMPLETE") - states.count("PRUNED"))
    ends = time.monotonic() + float("inf" if search.timeout is None else search.timeout)
    if search.jobs == 1:
        bench = Bench(ground, dataset, should_stop, nullcontext())
        for index in indices:
            if time.monotonic() < ends:
                ended(bench.trial(index))
        return
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    with ProcessPoolExecutor(search.jobs, spawn, _set_up, (ground, dataset, stop, spawn.Lock())) as pool:
        running = {pool.submit(_trial_before, ends, index) for index in indices}
        try:
            while running:
                done, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                if should_stop():
                    raise Interrupted
                for tried in (trial.result() for trial in done):
                    if tried is not None:
                        ended(tried)
        except BrokenProcessPool:
            raise InputError(
                f"the process of a trial was ended from outside (no memory left?); trials are kept in {ground.folder}: "
                "go on with fewer --jobs"
            ) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


_bench: Bench | None = None
"""Of this process, if it is one of several."""


def _set_up(ground: Ground, dataset: PackedDataset, stop: Any, turn: Any) -> None:
    """Begin a process for trials. Ctrl-C is for its parent, which says when to stop; it does not outlive its parent."""
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(1)
    _bench = Bench(ground, dataset, stop.is_set, turn)


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _trial_before(ends: float, index: int) -> Tried | None:
    assert _bench is not None
    return _bench.trial(index) if time.monotonic() < ends else None


# --- the study ---


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed: pip install 'mnagt[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(entry: Range | tuple) -> "optuna.distributions.BaseDistribution":
    kinds = _optuna().distributions
    if not isinstance(entry, Range):
        return kinds.CategoricalDistribution(entry)
    kind = kinds.IntDistribution if isinstance(entry.low, int) else kinds.FloatDistribution
    return kind(entry.low, entry.high, log=entry.log)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other search works in ``folder``, so that a trial under way in its file is one that was lost."""
    make_folder(folder)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another search is at work there; wait for it or choose another --out"
            ) from None
        yield


def open_study(ground: Ground, dataset: PackedDataset) -> "optuna.Study":
    """The study in the folder, begun if there is none."""
    optuna, path = _optuna(), ground.folder / STUDY
    from sqlalchemy.exc import SQLAlchemyError

    try:
        direction = "maximize" if dataset.task.higher_is_better else "minimize"
        study = optuna.create_study(
            study_name=STUDY, storage=ground.storage(), direction=direction, load_if_exists=True
        )
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: damaged or not a study ({reason}); remove it or choose another --out") from None
    asked = ground.told(dataset)
    if "search" not in study.user_attrs:
        if not study.trials:
            study.enqueue_trial(start_of(ground.config, ground.space), {"start": True})
        study.set_user_attr("search", asked)
    was, now = (_compared(told, path) for told in (study.user_attrs["search"], asked))
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            raise InputError(
                f"{path}: began with {name} {was.get(name, 'left out')}, and now it is {now.get(name, 'left out')}; "
                "say the same again or choose another --out"
            )
    _begin_anew(study)
    return study


def _compared(told: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What ``Ground.told`` said, by name. A setting that came later counts as what it is by default."""
    run = resolved(from_dict(RunConfig, told["run"], where=str(path)))
    del run["device"], run["train"]["checkpoint_seconds"]
    return dict(_flat(json.loads(json.dumps({**told, **run, "run": None}))))


def _flat(told: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in told.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{under}{name}.")
        else:
            yield f"{under}{name}", value


def _begin_anew(study: "optuna.Study") -> None:
    """Trials that were under way when a search ended are lost; their settings come next."""
    state = _optuna().trial.TrialState
    for trial in study.get_trials(states=(state.RUNNING,)):
        study.tell(trial.number, state=state.FAIL)
        tries = trial.user_attrs.get("tries", 1)
        if tries < TRIES:
            drawn = trial.system_attrs.get("fixed_params", {}) | trial.params
            study.enqueue_trial(drawn, trial.user_attrs | {"tries": tries + 1})


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
