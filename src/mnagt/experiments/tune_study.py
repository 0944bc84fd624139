"""Where a search keeps its trials, and how processes share them: each trial is one's own until it ends or is lost."""

import fcntl
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.experiments.ledger import resolved
from mnagt.experiments.trials import fingerprint
from mnagt.experiments.tune_space import Range, Space, start_of
from mnagt.files import make_folder
from mnagt.settings import from_dict
from mnagt.training.config import RunConfig

if TYPE_CHECKING:
    import optuna

STUDY = "study.db"
PATIENCE = 60.0
TRIES = 3
"""Times that a trial is begun; one that never ends may be what ends the process."""
OPENINGS = 5
"""Times that a storage is opened; processes that make its tables at once get in each other's way."""


def load_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed: pip install 'mnagt[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def located(storage: str) -> str:
    """A URL, or the path of a journal, that holds from elsewhere too."""
    if "://" not in storage:
        return str(Path(storage).expanduser().resolve())
    load_optuna()
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(storage)
    except ArgumentError:
        raise InputError(
            f"--storage {storage}: not a URL; for example sqlite:///FILE, postgresql://HOST/NAME"
        ) from None
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InputError(f"--storage {storage}: names no file; say sqlite:///FILE")
        url = url.set(drivername="sqlite", database=str(Path(url.database or "").resolve()), query={})
    return url.render_as_string(hide_password=False)


@dataclass(frozen=True)
class Ground:
    """What all trials of a search have in common."""

    config: RunConfig
    space: Space
    seeds: int
    folder: Path
    shared: str | None = None
    """A storage that other processes use too (``located``); none for a file in ``folder``."""
    name: str = STUDY
    """The search's in the storage."""
    patience: float = PATIENCE
    """Seconds after which a trial without a sign of life is lost."""

    def seeded(self, config: RunConfig, number: int) -> RunConfig:
        """The run of a trial with its seed ``number``: other weights, order and split."""
        train, split = config.train, config.split
        return replace(
            config, train=replace(train, seed=train.seed + number), split=replace(split, seed=split.seed + number)
        )

    def told(self, dataset: PackedDataset) -> dict[str, Any]:
        """What must be the same for trials to be compared."""
        space = {n: asdict(entry) if isinstance(entry, Range) else list(entry) for n, entry in self.space.items()}
        told = {"run": resolved(self.config), "graphs": len(dataset), "seeds": self.seeds, "space": space}
        if self.shared is not None:
            told |= {"patience": self.patience, "digest": fingerprint(dataset)["digest"]}
        return told

    @property
    def where(self) -> str:
        """The storage, for a message: without a password."""
        if self.shared is None or "://" not in self.shared:
            return self.shared or str(self.folder / STUDY)
        from sqlalchemy.engine import make_url

        return make_url(self.shared).render_as_string()

    @property
    def file(self) -> Path | None:
        """Of SQLite or of a journal; none if the storage is a server."""
        if self.shared is None:
            return self.folder / STUDY
        if self.is_journal or self.shared.startswith("sqlite:///"):
            return Path(self.shared.removeprefix("sqlite:///"))
        return None

    @property
    def is_journal(self) -> bool:
        return self.shared is not None and "://" not in self.shared

    def storage(self) -> "optuna.storages.BaseStorage":
        """The trials. Processes wait for each other to write."""
        storages = load_optuna().storages
        if self.is_journal:
            return storages.JournalStorage(storages.journal.JournalFileBackend(str(self.file)))
        if self.file is not None:
            return storages.RDBStorage(f"sqlite:///{self.file}", {"connect_args": {"timeout": 100}})
        return storages.RDBStorage(self.shared, {"pool_pre_ping": True})

    @contextmanager
    def turn(self, storage: "optuna.storages.BaseStorage") -> Iterator[None]:
        """One process at a time, on whichever machine, looks what there is to do and takes a trial.

        SQLite would hand the same waiting trial to two. A turn ends with its process: at once, or, of a journal, whose
        locks work on network file systems, after half a minute.
        """
        if self.is_journal:
            lock = load_optuna().storages.journal.JournalFileSymlinkLock(f"{self.file}.turn")
            lock.acquire()
            try:
                yield
            finally:
                lock.release()
        elif self.file is not None:
            with Path(f"{self.file}.turn").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        else:
            from sqlalchemy import text

            with storage.engine.begin() as connection:  # type: ignore[attr-defined]
                connection.execute(text("SELECT * FROM version_info FOR UPDATE"))
                yield


def open_study(ground: Ground, dataset: PackedDataset) -> "optuna.Study":
    """The study in the storage, begun if there is none."""
    storage = _opened(ground)
    choose = "--out" if ground.shared is None else "--study"
    with ground.turn(storage):
        direction = "maximize" if dataset.task.higher_is_better else "minimize"
        study = load_optuna().create_study(
            study_name=ground.name, storage=storage, direction=direction, load_if_exists=True
        )
        asked = ground.told(dataset)
        if "search" not in study.user_attrs:
            if not study.trials:
                study.enqueue_trial(start_of(ground.config, ground.space), {"start": True})
            study.set_user_attr("search", asked)
        was, now = (_compared(told, ground.where) for told in (study.user_attrs["search"], asked))
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                raise InputError(
                    f"{ground.where}: began with {name} {was.get(name, 'left out')}, and now it is "
                    f"{now.get(name, 'left out')}; say the same again or choose another {choose}"
                )
        if ground.shared is None:  # nobody else is there: what is under way was lost
            begin_anew(study, study.get_trials(states=(load_optuna().trial.TrialState.RUNNING,)))
    return study


def _opened(ground: Ground) -> "optuna.storages.BaseStorage":
    """The storage, with its tables made."""
    errors, make = load_optuna().exceptions, "--out" if ground.shared is None else "--storage"
    from sqlalchemy.exc import SQLAlchemyError

    if ground.file is not None:
        make_folder(ground.file.parent, wanted=ground.file)
    for opening in range(OPENINGS):
        try:
            storage = ground.storage()
            storage.get_all_studies()
            return storage
        except ImportError as error:
            raise InputError(f"{ground.where}: {error}") from None
        except (SQLAlchemyError, errors.StorageInternalError, RuntimeError, ValueError, KeyError) as error:
            if ground.shared is None or opening == OPENINGS - 1:
                reason = " ".join(str(error).split())[:120]
                raise InputError(
                    f"{ground.where}: damaged or not a study ({reason}); remove it or choose another {make}"
                ) from None
        time.sleep(0.3)
    raise AssertionError


def _compared(told: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What ``Ground.told`` said, by name. A setting that came later counts as what it is by default."""
    run = resolved(from_dict(RunConfig, told["run"], where=where))
    del run["device"], run["train"]["checkpoint_seconds"]
    return dict(_flat(json.loads(json.dumps({**told, **run, "run": None}))))


def _flat(told: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in told.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{under}{name}.")
        else:
            yield f"{under}{name}", value


def begin_anew(study: "optuna.Study", lost: "Sequence[optuna.trial.FrozenTrial]") -> None:
    """Trials that were under way when their process ended are lost; their settings come next. Needs the turn."""
    fail = load_optuna().trial.TrialState.FAIL
    for trial in lost:
        told, tries = study.tell(trial.number, state=fail, skip_if_finished=True), trial.user_attrs.get("tries", 1)
        if told.state == fail and tries < TRIES:
            drawn = trial.system_attrs.get("fixed_params", {}) | trial.params
            kept = {name: value for name, value in trial.user_attrs.items() if name != "beat"}
            study.enqueue_trial(drawn, kept | {"tries": tries + 1})


@contextmanager
def beating(trial: "optuna.Trial", patience: float) -> Iterator[None]:
    """Signs of life while a trial is trained, four in the time that others are patient."""
    over = Event()

    def beat() -> None:
        count = 0
        while not over.wait(patience / 4):
            count += 1
            with suppress(Exception):  # a storage out of reach may be there again for the next; a trial that was given
                trial.set_user_attr("beat", count)  # up is told so when it ends

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Signs:
    """What this process saw of others' trials, by its own clock: clocks of machines differ."""

    def __init__(self, patience: float) -> None:
        self.patience, self._seen = patience, {}

    def lost(self, study: "optuna.Study") -> "list[optuna.trial.FrozenTrial]":
        """Trials under way that have given no sign since they were first seen so, and long ago."""
        running = study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.RUNNING,))
        now, seen = time.monotonic(), self._seen
        marks = {trial.number: trial.user_attrs.get("beat") for trial in running}
        self._seen = {
            number: seen[number] if number in seen and seen[number][0] == mark else (mark, now)
            for number, mark in marks.items()
        }
        return [trial for trial in running if now - self._seen[trial.number][1] > self.patience]
