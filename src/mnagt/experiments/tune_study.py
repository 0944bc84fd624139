"""The Optuna study of a search: where its trials are kept, and how several processes share them."""

import fcntl
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.experiments.ledger import resolve_config
from mnagt.experiments.tune_result import START
from mnagt.experiments.tune_space import Range, Space, starting_point
from mnagt.files import make_folder
from mnagt.migrations import rename_choice, rename_in_database, rename_in_journal, rename_settings
from mnagt.runs.config import RunConfig
from mnagt.runs.fingerprint import dataset_fingerprint, matches_fingerprint
from mnagt.settings import from_dict

if TYPE_CHECKING:
    import optuna

STUDY = "study.db"
PATIENCE = 60.0
MAX_ATTEMPTS = 3
"""Times that a trial is started; one that never ends may be what ends the process."""
OPENINGS = 5
"""Times that a storage is opened: processes that create its tables at the same time disturb each other."""


def import_optuna() -> Any:
    """The module, with its log messages below warnings turned off."""
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed: pip install 'mnagt[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def allow_experimental() -> Iterator[None]:
    """Heartbeats are experimental in Optuna, and meant for ``Study.optimize``; no warnings of that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", import_optuna().exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage is supposed to be used with Study.optimize")
        yield


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
    seeds: int
    folder: Path
    shared: str | None = None
    """A storage that other processes use too (``resolve_storage``); none for a file in ``folder``."""
    name: str = STUDY
    """Name of the study in the storage."""
    patience: float = PATIENCE
    """Seconds after which a trial without a heartbeat is lost."""

    def with_seed(self, config: RunConfig, number: int) -> RunConfig:
        """The run of a trial with its seed ``number``: other weights, order and split."""
        train, split = config.train, config.split
        return replace(
            config, train=replace(train, seed=train.seed + number), split=replace(split, seed=split.seed + number)
        )

    def describe(self, dataset: PackedDataset) -> dict[str, Any]:
        """What must stay the same for trials to be comparable; kept in the study."""
        space = {n: asdict(entry) if isinstance(entry, Range) else list(entry) for n, entry in self.space.items()}
        terms = {"run": resolve_config(self.config), "graphs": len(dataset), "seeds": self.seeds, "space": space}
        if self.shared is not None:
            terms |= {"patience": self.patience, "digest": dataset_fingerprint(dataset)["digest"]}
        return terms

    @property
    def storage_name(self) -> str:
        """The storage as messages name it: without a password."""
        if self.shared is None or "://" not in self.shared:
            return self.shared or str(self.folder / STUDY)
        from sqlalchemy.engine import make_url

        return make_url(self.shared).render_as_string()

    @property
    def file(self) -> Path | None:
        """The file of SQLite or of a journal; none if the storage is a server."""
        if self.shared is None:
            return self.folder / STUDY
        if self.is_journal or self.shared.startswith("sqlite:///"):
            return Path(self.shared.removeprefix("sqlite:///"))
        return None

    @property
    def is_journal(self) -> bool:
        return self.shared is not None and "://" not in self.shared

    def connect(self) -> "optuna.storages.BaseStorage":
        """The storage, in which trials have heartbeats and those that lose theirs are started again."""
        storages, interval = import_optuna().storages, max(1, int(self.patience / 4))
        grace_period = max(int(self.patience), 2 * interval)
        with allow_experimental():
            retry = storages.RetryHeartbeatStaleTrialCallback(max_retry=MAX_ATTEMPTS - 1)
            if self.is_journal:
                from mnagt.experiments.tune_journal import HeartbeatJournal

                assert self.file is not None
                return HeartbeatJournal(self.file, interval=interval, grace_period=grace_period, on_stale=retry)
            is_file = self.file is not None
            return storages.RDBStorage(
                f"sqlite:///{self.file}" if is_file else self.shared,
                {"connect_args": {"timeout": 100}} if is_file else {"pool_pre_ping": True},
                heartbeat_interval=interval,
                grace_period=grace_period,
                heartbeat_stale_trial_callback=retry,
            )

    def rename(self, storage: "optuna.storages.BaseStorage") -> bool:
        """Give parameters that an older version named the names of today. Needs the lock."""
        if self.is_journal:
            return rename_in_journal(Path(self.shared or ""), self.space)
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
                fcntl.flock(file, fcntl.LOCK_EX)
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
        direction = "maximize" if dataset.task.higher_is_better else "minimize"
        study = import_optuna().create_study(
            study_name=search.name, storage=storage, direction=direction, load_if_exists=True
        )
        terms = search.describe(dataset)
        if "search" not in study.user_attrs:
            if not study.trials:
                study.enqueue_trial(starting_point(search.config, search.space), {START: True})
            study.set_user_attr("search", terms)
        _check_terms(search, study.user_attrs["search"], terms, dataset)
        running = study.get_trials(deepcopy=False, states=(import_optuna().trial.TrialState.RUNNING,))
        for trial in running:
            if search.shared is None:  # no other process is there: it was lost
                retry(study, trial)
            else:  # one without any heartbeat is lost after the grace period, too
                storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
    return study


def retry(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
    """Fail a trial whose process has ended; its settings come next, unless they were tried often enough."""
    study.tell(trial.number, state=import_optuna().trial.TrialState.FAIL)
    study._storage.get_heartbeat_stale_trial_callback()(study, trial)  # type: ignore[attr-defined]


def _open_storage(search: Search, attempts: int = OPENINGS) -> "optuna.storages.BaseStorage":
    """The storage, with its tables created."""
    errors, option = import_optuna().exceptions, "--out" if search.shared is None else "--storage"
    from sqlalchemy.exc import SQLAlchemyError

    if search.file is not None:
        make_folder(search.file.parent, wanted=search.file)
    try:
        storage = search.connect()
        storage.get_all_studies()
        return storage
    except ImportError as error:
        raise InputError(f"{search.storage_name}: {error}") from None
    except (SQLAlchemyError, errors.StorageInternalError, RuntimeError, ValueError, KeyError) as error:
        if search.shared is None or attempts == 1:
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"{search.storage_name}: damaged or not a study ({reason}); remove it or choose another {option}"
            ) from None
    time.sleep(0.3)
    return _open_storage(search, attempts - 1)


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
                f"{'--out' if search.shared is None else '--study'}"
            )


def _flatten_terms(terms: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``Search.describe`` by dotted names. A setting that did not exist when it was written counts as its default."""
    run = resolve_config(from_dict(RunConfig, terms["run"], where=where))
    del run["device"], run["train"]["checkpoint_seconds"]
    space = rename_settings(terms["space"], run["train"] | run["settings"])
    space = {
        n: [rename_choice(n, value) for value in entry] if isinstance(entry, list) else entry
        for n, entry in space.items()
    }
    return dict(_flatten(json.loads(json.dumps({**terms, **run, "run": None, "space": space}))))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
