"""The models of a service by name and version, loaded again when their folders change."""

import logging
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi.exceptions import HTTPException

from mnagt.errors import InputError, quote
from mnagt.files import read_json
from mnagt.inference.weights import CALIBRATION, CONFIG, DOMAIN, WEIGHTS
from mnagt.runs.folder import RUNS, list_runs
from mnagt.serve.service import Service

SHARES = "shares.json"
"""In the folder of a model with several versions: the share of the requests that each gets, such as
``{"1": 0.9, "2": 0.1}``. Without it the newest version gets all."""
ONLY_VERSION = "1"
"""Of a model that has no folders for versions."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_log = logging.getLogger(__name__)

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, time and size of each file of a model."""


@dataclass(frozen=True)
class ServedModel:
    """The versions of a model, and the share of the requests that each gets."""

    versions: Mapping[str, Service]
    shares: Mapping[str, float]


class Models:
    """What a service answers for. ``refresh`` reads the folder again; requests go on meanwhile.

    Args:
        root: A folder of model folders, or of folders of versions; None for models that never change.
        start: From a folder, a name and a version to a service for it.
    """

    def __init__(
        self, root: Path | None, start: Callable[[Path, str, str], Service], only: tuple[str, Service] | None = None
    ) -> None:
        self._root, self._start = root, start
        self._stamps: dict[tuple[str, str], Stamp] = {}
        self._reported: dict[str, str] = {}
        """What was said last of the shares of each model, so that it is said once."""
        self.table: Mapping[str, ServedModel] = {}
        if only is not None:
            name, service = only
            self.table = {name: ServedModel({ONLY_VERSION: service}, {ONLY_VERSION: 1.0})}

    @property
    def services(self) -> list[Service]:
        return [service for model in self.table.values() for service in model.versions.values()]

    def count_waiting(self) -> int:
        """Requests that wait or are computed."""
        return sum(service.count_waiting() for service in self.services)

    def measure_drift(self, samples: Mapping[str, float]) -> dict[str, float]:
        """The drift of each model."""
        return {name: value for service in self.services for name, value in service.measure_drift(samples).items()}

    def choose(self, name: str | None = None, version: str | None = None) -> Service:
        """The service of a model; of its versions one drawn by their shares, unless it is given."""
        if name is None and len(self.table) != 1:
            names = ", ".join(self.table) or "none yet"
            raise HTTPException(404, f"several models are served ({names}); send the request to /models/NAME/...")
        model = self.table.get(next(iter(self.table)) if name is None else name)
        if model is None:
            raise HTTPException(404, f"no such model; there are: {', '.join(self.table)}")
        if version is None:
            (version,) = random.choices(list(model.shares), list(model.shares.values()))
        if version not in model.versions:
            raise HTTPException(404, f"no such version; there are: {', '.join(model.versions)}")
        return model.versions[version]

    def list_versions(self, service: Service) -> list[str]:
        """The versions of the model of a service, which may have been removed since it was chosen."""
        name, version = service.key
        return list(self.table[name].versions) if name in self.table else [version]

    def refresh(self) -> list[Service]:
        """Load what is new or has changed in the folder, and return the services that are no longer needed.

        A model that cannot be loaded is reported and left out; where it replaces another, the other stays.
        """
        if self._root is None:
            return []
        before, table = {service.key: service for service in self.services}, {}
        all_folders = find_models(self._root)
        self._stamps = {key: stamp for key, stamp in self._stamps.items() if key[1] in all_folders.get(key[0], ())}
        for name, folders in all_folders.items():
            versions = {}
            for version, folder in folders.items():
                if (service := self._load_changed(folder, name, version, before.get((name, version)))) is not None:
                    versions[version] = service
            if versions:
                shares = self.table[name].shares if name in self.table else {}
                shares, problem = read_shares(self._root / name / SHARES, versions, shares)
                if problem and problem != self._reported.get(name):
                    _log.error("%s", problem)
                self._reported[name] = problem
                table[name] = ServedModel(versions, shares)
        self.table = table
        return [service for service in before.values() if service not in self.services]

    def _load_changed(self, folder: Path, name: str, version: str, current: Service | None) -> Service | None:
        """A service for the folder: ``current``, if that is as it was or a new one cannot be loaded."""
        try:
            stamp = stamp_files(folder)
            if stamp == self._stamps.get((name, version)):
                return current
            self._stamps[name, version] = stamp
            service = self._start(folder, name, version)
        except Exception as error:  # also PyTorch's own, such as for lack of memory: the others are loaded all the same
            _log.error("%s is not served%s: %s", folder, " anew" if current else "", error)
            return current
        _log.warning("%s is served as version %s of %s", folder, version, name)
        return service


def is_model_folder(folder: Path) -> bool:
    """Whether a folder is that of a model, or of several runs that make one."""
    return (folder / CONFIG).is_file() or (folder / RUNS).is_file()


def find_models(root: Path) -> dict[str, dict[str, Path]]:
    """The model folders below ``root`` by name and version, the newest version last.

    Names are of letters, digits, ``_``, ``-`` and ``.``; those that begin with a dot are being written.
    """
    models = {}
    for folder in _list_folders(root):
        if is_model_folder(folder):
            models[folder.name] = {ONLY_VERSION: folder}
        elif versions := [each for each in _list_folders(folder) if is_model_folder(each)]:
            models[folder.name] = {version.name: version for version in versions}
    return models


def _list_folders(folder: Path) -> list[Path]:
    folders = [path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(folders, key=lambda path: _natural_key(path.name))


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Orders 9 before 10.

    >>> sorted(["v10", "v9"], key=_natural_key)
    ['v9', 'v10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", name)]


def stamp_files(folder: Path) -> Stamp:
    """What changes when a model is replaced: by a rename of its folder or of a file in it."""
    files = [each / name for each in (folder, *list_runs(folder)) for name in (CONFIG, WEIGHTS, CALIBRATION, DOMAIN)]
    stats = [(str(file), file.stat()) for file in files if file.exists()]
    return tuple((name, each.st_ino, each.st_mtime_ns, each.st_size) for name, each in stats)


def read_shares(
    path: Path, versions: Mapping[str, Service], before: Mapping[str, float]
) -> tuple[dict[str, float], str]:
    """The shares of the versions, and why they could not be read, or nothing.

    All are for the newest where there is no file. If it cannot be read, they are those of before: a file that is
    damaged must not send all requests to a version on trial.
    """
    newest = {list(versions)[-1]: 1.0}
    if not path.exists():
        return newest, ""
    try:
        content = read_json(path)
        shares = {version: float(share) for version, share in content.items() if version in versions}
        if not all(0 <= share <= 1 for share in shares.values()) or not sum(shares.values()) > 0:
            raise ValueError(f"got {quote(content)}")
    except (InputError, AttributeError, TypeError, ValueError) as error:
        kept = {version: share for version, share in before.items() if version in versions}
        is_kept = sum(kept.values()) > 0
        what = "they stay as they are" if is_kept else "the newest gets all"
        problem = f'{path}: expected shares of versions, such as {{"1": 0.9, "2": 0.1}} ({error}); {what}'
        return (kept if is_kept else newest), problem
    return shares, ""
