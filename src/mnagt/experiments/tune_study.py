"""The Optuna study of a search: where its trials are kept, and how several processes share them."""

import json
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError, explain_missing, one_line
from mnagt.experiments.config import TuneConfig
from mnagt.experiments.ledger import comparable_settings, read_recorded_config, resolve_config
from mnagt.experiments.tune_result import START
from mnagt.experiments.tune_space import Range, Space, starting_point
from mnagt.files import lock_file, make_folder
from mnagt.migrations import rename_choice, rename_in_database, rename_in_journal, rename_settings
from mnagt.runs.config import RunConfig
from mnagt.runs.fingerprint import dataset_fingerprint, matches_fingerprint

if TYPE_CHECKING:
    import optuna

STUDY, HEARTBEAT = "study.db", "heartbeat"
MAX_ATTEMPTS = 3
"""Times that a trial is started; one that never ends may be what ends the process."""
OLD_TERMS = {"patience": "heartbeat_timeout"}
"""What 0.1 called a setting of a search."""
OPENINGS = 5
"""Times that a storage is opened: processes that create its tables at the same time disturb each other."""


def import_optuna() -> Any:
    """The module, with its log messages below warnings turned off."""
    with explain_missing("a search", "tune"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def resolve_storage(storage: str) -> str:
    """A URL, or the path of a journal, that holds in any folder."""
    if "://" not in storage:
        return str(Path(storage).expanduser().resolve())
    import_optuna()
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
class Search:
    """What all trials of a search have in common."""

    config: RunConfig
    """The settings that it begins with."""
    space: Space
    options: TuneConfig
    storage: str
    """Where its trials are kept (``resolve_storage``)."""
    name: str = STUDY
    """Name of the study in the storage."""
    is_shared: bool = False
    """Other processes use the storage too."""
    deadline: float = float("inf")
    """``time.time()`` after which no trial is started."""
    waits_for_others: bool = False
    """Stay until trials of other processes are over: one of them may be lost, and is then started again."""

    def describe(self, dataset: PackedDataset) -> dict[str, Any]:
        """What must stay the same for trials to be comparable; kept in the study."""
        space = {n: asdict(entry) if isinstance(entry, Range) else list(entry) for n, entry in self.space.items()}
        terms = {"run": resolve_config(self.config), "graphs": len(dataset), "space": space}
        terms["seeds"] = self.options.seeds
        if self.is_shared:
            digest = dataset_fingerprint(dataset)["digest"]
            terms |= {"heartbeat_timeout": self.options.heartbeat_timeout, "digest": digest}
        return terms

    @property
    def storage_name(self) -> str:
        """The storage as messages name it: without a password."""
        if self.file is not None:
            return str(self.file)
        from sqlalchemy.engine import make_url

        return make_url(self.storage).render_as_string()

    @property
    def file(self) -> Path | None:
        """The file of SQLite or of a journal; none if the storage is a server."""
        path = self.storage.removeprefix("sqlite:///")
        return None if "://" in path else Path(path)

    @property
    def is_journal(self) -> bool:
        return "://" not in self.storage

    def connect(self) -> "optuna.storages.BaseStorage":
        storages = import_optuna().storages
        if self.is_journal:
            return storages.JournalStorage(storages.journal.JournalFileBackend(self.storage))
        options = {"pool_pre_ping": True} if self.file is None else {"connect_args": {"timeout": 100}}
        return storages.RDBStorage(self.storage, options)

    def rename(self, storage: "optuna.storages.BaseStorage") -> bool:
        """Give parameters that an older version named the names of today. Needs the lock."""
        if self.is_journal:
            return rename_in_journal(Path(self.storage), self.space)
        return rename_in_database(storage.engine, self.space)  # type: ignore[attr-defined]

    @contextmanager
    def lock(self, storage: "optuna.storages.BaseStorage") -> Iterator[None]:
        """Held by one process at a time, on any machine, while it counts trials and takes one.

        SQLite would hand the same waiting trial to two processes. The lock ends with its process: at once, or, for a
        journal, whose locks work on network file systems, after half a minute.
        """
        if self.is_journal:
            lock = import_optuna().storages.journal.JournalFileSymlinkLock(f"{self.file}.turn")
            lock.acquire()
            try:
                yield
            finally:
                lock.release()
        elif self.file is not None:
            with Path(f"{self.file}.turn").open("w") as file:
                lock_file(file)
                yield
        else:
            from sqlalchemy import text

            with storage.engine.begin() as connection:  # type: ignore[attr-defined]
                connection.execute(text("SELECT * FROM version_info FOR UPDATE"))
                yield


def open_study(search: Search, dataset: PackedDataset) -> "optuna.Study":
    """The study in the storage, created if there is none. One that began otherwise is refused."""
    storage = _open_storage(search)
    with search.lock(storage):
        if search.rename(storage):
            storage = _open_storage(search)
        direction = "maximize" if dataset.task.with_metric(search.config.train.metric).higher_is_better else "minimize"
        study = import_optuna().create_study(
            study_name=search.name, storage=storage, direction=direction, load_if_exists=True
        )
        terms = search.describe(dataset)
        if "search" not in study.user_attrs:
            if not study.trials:
                study.enqueue_trial(starting_point(search.config, search.space), {START: True})
            study.set_user_attr("search", terms)
        _check_terms(search, study.user_attrs["search"], terms, dataset)
        if not search.is_shared:  # no other process is there: what is running was lost
            for trial in list_running(study):
                retry(study, trial)
    return study


def list_running(study: "optuna.Study") -> "list[optuna.trial.FrozenTrial]":
    return study.get_trials(states=(import_optuna().trial.TrialState.RUNNING,))


def retry(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
    """Fail a trial whose process has ended; its settings come next, unless they were tried often enough."""
    optuna = import_optuna()
    study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=MAX_ATTEMPTS - 1)(study, trial)


class Heartbeats:
    """Signs that the process of a trial is alive, kept in the study. Optuna has them for databases, not for journals.

    A trial is lost when this process has seen the same heartbeat for ``timeout`` seconds: clocks of machines differ.
    """

    def __init__(self, study: "optuna.Study", timeout: float) -> None:
        self.study, self.timeout = study, timeout
        self._last_change: dict[int, tuple[float | None, float]] = {}

    @contextmanager
    def keep(self, trial: "optuna.Trial") -> Iterator[None]:
        """Give a trial of this process a heartbeat until the block ends."""
        is_over = threading.Event()

        def beat() -> None:
            with suppress(import_optuna().exceptions.UpdateFinishedTrialError):  # another process has given it up
                while not is_over.is_set():
                    trial.set_user_attr(HEARTBEAT, time.time())
                    is_over.wait(self.timeout / 4)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def retry_lost(self) -> None:
        """Start the trials again whose heartbeat has ended. Needs the lock."""
        now, before = time.monotonic(), self._last_change
        self._last_change = {}
        for trial in list_running(self.study):
            last, since = before.get(trial.number, (None, now))
            current = trial.user_attrs.get(HEARTBEAT)
            self._last_change[trial.number] = current, since if current == last else now
            if current == last and now - since > self.timeout:
                retry(self.study, trial)


def _open_storage(search: Search) -> "optuna.storages.BaseStorage":
    """The storage, with its tables created."""
    errors, reason = import_optuna().exceptions, ""
    from sqlalchemy.exc import SQLAlchemyError

    if search.file is not None:
        make_folder(search.file.parent, wanted=search.file)
    for _ in range(OPENINGS if search.is_shared else 1):
        try:
            storage = search.connect()
            storage.get_all_studies()
            return storage
        except ImportError as error:
            raise InputError(f"{search.storage_name}: {error}") from None
        except (SQLAlchemyError, errors.StorageInternalError, RuntimeError, ValueError, KeyError) as error:
            reason = one_line(error, 120)
        time.sleep(0.3)
    option = "--storage" if search.is_shared else "--out"
    raise InputError(f"{search.storage_name}: damaged or not a study ({reason}); remove it or choose another {option}")


def _check_terms(search: Search, began: Mapping[str, Any], now: Mapping[str, Any], dataset: PackedDataset) -> None:
    """Refuse to go on with a study that began with other settings, space, seeds or data."""
    has_digests = "digest" in began and "digest" in now  # which versions compute differently
    if has_digests and matches_fingerprint({**dataset_fingerprint(dataset), "digest": began["digest"]}, dataset):
        began = {**began, "digest": now["digest"]}
    old, new = (_flatten_terms(terms, search.storage_name) for terms in (began, now))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise InputError(
                f"{search.storage_name}: began with {name} {old.get(name, 'left out')}, and now it is "
                f"{new.get(name, 'left out')}; say the same again or choose another "
                f"{'--study' if search.is_shared else '--out'}"
            )


def _flatten_terms(terms: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``Search.describe`` by dotted names. A setting that did not exist when it was written counts as its default."""
    run = comparable_settings(read_recorded_config(terms["run"], where=where))
    space = rename_settings(terms["space"], run["train"] | run["settings"])
    space = {
        n: [rename_choice(n, value) for value in entry] if isinstance(entry, list) else entry
        for n, entry in space.items()
    }
    terms = {OLD_TERMS.get(name, name): value for name, value in terms.items()}
    return dict(_flatten(json.loads(json.dumps({**terms, **run, "run": None, "space": space}))))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
