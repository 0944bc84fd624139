"""Data sets by name: where each comes from, what is published about it, and how to load it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.registry import lookup


@dataclass(frozen=True)
class Source:
    """A public data set. The statistics are the published ones; an edge counts once, whichever way it runs."""

    name: str
    kind: str
    """How it is stored, a key of ``LOADERS``."""
    description: str
    graphs: int
    classes: int
    mean_nodes: float
    mean_edges: float
    meanings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the values in the files stand for, by column ('node_labels/0', ...); 'classes' are the graph labels."""


MUTAG_MEANINGS = {
    "node_labels/0": {"0": "C", "1": "N", "2": "O", "3": "F", "4": "I", "5": "Cl", "6": "Br"},
    "edge_labels/0": {"0": "aromatic", "1": "single", "2": "double", "3": "triple"},
    "classes": {"1": "mutagenic", "-1": "not mutagenic"},
}

EMBEDDED = Path(__file__).parent / "files"
"""Data sets that come with the package."""

DATASETS: dict[str, Source] = {
    source.name: source
    for source in (
        Source("MUTAG", "tu", "nitroaromatics; mutagenic or not", 188, 2, 17.93, 19.79, MUTAG_MEANINGS),
        Source("NCI1", "tu", "compounds; active against lung cancer cells or not", 4110, 2, 29.87, 32.30),
        Source("NCI109", "tu", "compounds; active against ovarian cancer cells or not", 4127, 2, 29.68, 32.13),
        Source("PROTEINS", "tu", "secondary structures of proteins; enzyme or not", 1113, 2, 39.06, 72.82),
        Source("COLLAB", "tu", "ego networks of physicists; one of 3 fields", 5000, 3, 74.49, 2457.78),
    )
}


def data_root() -> Path:
    """Where downloaded data sets lie: ``MNAGT_DATA``, or else ``~/.cache/mnagt/data``."""
    return Path(os.environ.get("MNAGT_DATA") or "~/.cache/mnagt/data").expanduser()


def load_dataset(name_or_path: str | Path, root: Path | None = None) -> PackedDataset:
    """A data set of ``DATASETS`` by name, or the zip or folder in the TU text layout at a path.

    A named one is looked for in ``root`` (``data_root()`` unless given) as NAME.zip, NAME/ or NAME/raw/, and fetched
    into it if it is not there. MUTAG comes with the package.
    """
    name = str(name_or_path)
    if name not in DATASETS or (isinstance(name_or_path, Path) and name_or_path.exists()):
        path = Path(os.path.expanduser(name))
        if os.path.exists(path):
            return _read_tu(path)
        if isinstance(name_or_path, Path) or os.sep in name or path.suffix:
            raise InputError(f"{path}: no such file or folder; data sets by name: {', '.join(sorted(DATASETS))}")
    source = lookup(DATASETS, name, "data set")
    return LOADERS[source.kind](source, root or data_root())


def meanings(dataset: PackedDataset, column: str) -> tuple[str, ...]:
    """What the categories of ``column`` ('node_labels/0', ..., or 'classes') stand for, as far as is known."""
    values = getattr(dataset.task, "classes", ()) if column == "classes" else dataset.vocabularies.get(column, ())
    known = DATASETS[dataset.name].meanings.get(column, {}) if dataset.name in DATASETS else {}
    return tuple(known.get(value, value) for value in values)


def where_is(name: str, root: Path) -> Path | None:
    """Where the TU data set called ``name`` lies; None if it would have to be downloaded."""
    zipped, folder, embedded = root / f"{name}.zip", root / name, EMBEDDED / f"{name}.zip"
    if os.path.exists(zipped):
        return zipped
    if any(os.path.exists(folder / inner / f"{name}_A.txt") for inner in ("", "raw", name)):
        return folder
    return embedded if embedded.exists() else None


def _load_tu(source: Source, root: Path) -> PackedDataset:
    from mnagt.data.download import download_tu

    return _read_tu(where_is(source.name, root) or download_tu(source.name, root))


def _read_tu(path: Path) -> PackedDataset:
    from mnagt.data import cache, tu

    parts = [part for file in tu.files_read(path) for part in (file.name, file)]
    return cache.cached(tu.VERSION, *parts, build=lambda: tu.read_tu(path))


LOADERS: dict[str, Callable[[Source, Path], PackedDataset]] = {"tu": _load_tu}
