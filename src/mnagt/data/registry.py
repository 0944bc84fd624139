"""Data sets by name: where each comes from, what is published about it, and how to load it."""

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mnagt.data import download
from mnagt.data.cache import load_or_build
from mnagt.data.collections import OGB_ARCHIVES, OGB_UNREADABLE, TU_NAMES
from mnagt.data.memmap import is_packed_folder, open_packed
from mnagt.data.packed import PackedDataset
from mnagt.data.readers import code, descriptor_columns, graphml, jsonl, node_edge_tables, ogb, peptides, tu
from mnagt.data.readers.attributed_graphs import AttributedGraphs
from mnagt.data.readers.dataset_files import OGB_MARK, find_ogb_files, find_tu_files, is_ogb_layout
from mnagt.data.readers.molecule_reader import rdkit_version
from mnagt.data.readers.molecule_table import read_molecules
from mnagt.data.readers.split_columns import SplitColumn
from mnagt.data.readers.text_table import TABLES
from mnagt.data.synthetic import make_synthetic
from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError, join_names
from mnagt.files import suggest_file
from mnagt.plugins import load_plugins
from mnagt.registry import add_entry, lookup
from mnagt.tasks import Task


@dataclass(frozen=True)
class Source:
    """A public data set. The statistics are the published ones; an edge counts once, whichever way it runs.

    >>> DATASETS["MUTAG"].graphs, DATASETS["MUTAG"].metric
    (188, 'accuracy')
    """

    name: str
    """What ``load_dataset`` takes."""
    kind: str
    """How it is stored, a key of ``LOADERS``."""
    description: str
    """What the graphs are, and what is predicted."""
    graphs: int
    """How many there are."""
    classes: int
    """Or, where the metric is not accuracy, how many questions or numbers a graph has."""
    mean_nodes: float
    """Nodes of a graph, on average."""
    mean_edges: float
    """Edges of a graph, on average."""
    meanings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the values in the files stand for, by column ('node_labels/0', ...); 'classes' are the graph labels."""
    metric: str = "accuracy"
    """The score that it is judged by; '' if that follows from its targets."""
    archive: str = ""
    """The zip at OGB's site."""
    build: Callable[[], PackedDataset] | None = None
    """What makes a data set of a plugin."""

    @property
    def has_official_split(self) -> bool:
        """Whether an official split comes with it."""
        return self.kind not in ("tu", "plugin")

    @property
    def availability(self) -> str:
        """Where it comes from if it is not in the data root."""
        if self.kind == "plugin":
            return "made by a plugin"
        if self.kind == "stdlib":
            return "made from Python's own sources at first use"
        if self.kind == "synthetic":
            return "drawn at random, always the same"
        return "downloaded at first use" if self.kind == "tu" or self.archive else "not here; nor to be downloaded"

    @property
    def stems(self) -> tuple[str, ...]:
        """What its zip or folder may be called."""
        return tuple(dict.fromkeys([self.name, self.name.replace("-", "_"), Path(self.archive).stem or self.name]))


MUTAG_MEANINGS = {
    "node_labels/0": {"0": "C", "1": "N", "2": "O", "3": "F", "4": "I", "5": "Cl", "6": "Br"},
    "edge_labels/0": {"0": "aromatic", "1": "single", "2": "double", "3": "triple"},
    "classes": {"1": "mutagenic", "-1": "not mutagenic"},
}

EMBEDDED = Path(__file__).parent / "files"
"""Data sets that come with the package."""


def _molecules(name: str, what: str, graphs: int, tasks: int, nodes: float, edges: float, metric: str) -> Source:
    archive = f"csv_mol_download/{'lipophilicity' if name == 'lipo' else name}.zip"
    return Source(f"ogbg-mol{name}", "ogb", what, graphs, tasks, nodes, edges, {}, metric, archive)


DATASETS: dict[str, Source] = {
    source.name: source
    for source in (
        Source("MUTAG", "tu", "nitroaromatics; mutagenic or not", 188, 2, 17.93, 19.79, MUTAG_MEANINGS),
        Source("NCI1", "tu", "compounds; active against lung cancer cells or not", 4110, 2, 29.87, 32.30),
        Source("NCI109", "tu", "compounds; active against ovarian cancer cells or not", 4127, 2, 29.68, 32.13),
        Source("PROTEINS", "tu", "secondary structures of proteins; enzyme or not", 1113, 2, 39.06, 72.82),
        Source("COLLAB", "tu", "ego networks of physicists; one of 3 fields", 5000, 3, 74.49, 2457.78),
        _molecules("pcba", "PubChem assays; active in each or not", 437929, 128, 25.97, 28.11, "ap"),
        _molecules("hiv", "inhibits HIV or not", 41127, 1, 25.5, 27.5, "rocauc"),
        _molecules("tox21", "toxic in each of 12 assays or not", 7831, 12, 18.6, 19.3, "rocauc"),
        _molecules("toxcast", "toxic in each of 617 assays or not", 8576, 617, 18.8, 19.3, "rocauc"),
        _molecules("muv", "PubChem assays, made hard; active or not", 93087, 17, 24.2, 26.3, "ap"),
        _molecules("bace", "inhibits beta-secretase 1 or not", 1513, 1, 34.1, 36.9, "rocauc"),
        _molecules("bbbp", "passes the blood-brain barrier or not", 2039, 1, 24.1, 26.0, "rocauc"),
        _molecules("clintox", "drugs; approved, and toxic in trials, or not", 1477, 2, 26.2, 27.9, "rocauc"),
        _molecules("sider", "drugs; each of 27 kinds of side effect or not", 1427, 27, 33.6, 35.4, "rocauc"),
        _molecules("esol", "solubility in water", 1128, 1, 13.3, 13.7, "rmse"),
        _molecules("freesolv", "free energy of hydration", 642, 1, 8.7, 8.4, "rmse"),
        _molecules("lipo", "lipophilicity", 4200, 1, 27.0, 29.5, "rmse"),
        Source("ogbg-code2", "ogb", "Python methods; their names", 452741, 1, 125.2, 124.2, {}, "f1", "code2.zip"),
        Source("peptides-func", "peptides", "peptides; each of 10 functions", 15535, 10, 150.94, 153.65, {}, "ap"),
        Source("pypi_ast", "ogb", "methods of 531 Python packages; their names", 89372, 1, 111.4, 110.4, {}, "f1"),
        Source("tree-neighbours-match", "synthetic", "trees; the leaf that matches the root", 5000, 16, 31, 30),
        Source("ring-transfer", "synthetic", "rings; the node opposite the marked one", 5000, 5, 14.95, 14.95),
        Source("cycle-count", "synthetic", "random graphs; cycles of four nodes", 5000, 1, 18.0, 27.0, {}, "rmse"),
        Source("stdlib", "stdlib", "functions of Python's own library; their names", 12905, 1, 73.7, 72.7, {}, "f1"),
    )
}
"""Every data set that ``load_dataset`` knows by name. ``register_dataset`` adds one."""


def data_root() -> Path:
    """Where downloaded data sets lie: ``MNAGT_DATA``, or else ``~/.cache/mnagt/data``."""
    return Path(os.environ.get("MNAGT_DATA") or "~/.cache/mnagt/data").expanduser()


SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
"""Ends of names of files that are refused: their text is in none of the formats that are read."""


def load_dataset(
    name_or_path: str | Path,
    root: Path | None = None,
    *,
    smiles: str | None = None,
    targets: Sequence[str] | None = None,
    task: str | Task = "auto",
    group: str | SplitColumn | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    options: TableConfig = TableConfig(),
) -> PackedDataset:
    """Load a data set by name or path.

    Args:
        name_or_path: A name in ``DATASETS``, or that of any data set of the TU and OGB (ogbg-...) collections; or a
            zip or folder in the TU or OGB layout; a table of molecules (CSV, TSV, .smi); or graphs of your own: JSONL,
            GraphML, a folder with tables of graphs, nodes and edges.
        root: Where a named data set is looked for, as NAME.zip, NAME/ or NAME/raw/, and downloaded to if missing;
            ``data_root()`` by default. MUTAG comes with the package.
        smiles: The column of SMILES of a table, where it cannot be guessed; of several components of a row, their
            columns ('solute,solvent').
        targets: The target columns of a table or of your own graphs, where they cannot be guessed.
        task: The kind of targets; see ``read_molecules``, which also reports the rows that it left out.
        group: The column that a split reads: whose groups stay together, or, as a ``SplitColumn``, with the part
            (train, valid, test) or the time of each row.
        columns: The columns that a model reads, by kind (``TrainedModel.columns``); by default all, and of a table of
            molecules no descriptors.
        options: How a table of molecules is read.

    >>> from mnagt import load_dataset
    >>> len(load_dataset("MUTAG"))
    188
    """
    name = str(name_or_path)
    if name.lower().endswith(SPREADSHEETS):
        raise InputError(f"{name}: spreadsheets are not read; save the sheet as CSV (UTF-8), and give that file")
    if is_molecule_table(name):
        path = os.path.expanduser(name)
        chosen = {"smiles": smiles, "targets": targets, "task": task, "group": group, "options": options}
        return read_molecules(path, **chosen, descriptors=(columns or {}).get(descriptor_columns.KIND, ())).dataset
    if options != TableConfig():
        raise InputError(f"{name}: {join_names(vars(options))} can only be chosen of a table ({', '.join(TABLES)})")
    if smiles is None and (read := find_graph_reader(name)):
        return read().pack(targets=targets, task=task, group=group, columns=columns)
    if (smiles, targets, task, group) != (None, None, "auto", None):
        raise InputError(f"{name}: columns and task can only be chosen of a table ({', '.join(TABLES)})")
    if name not in DATASETS or (isinstance(name_or_path, Path) and name_or_path.exists()):
        path = Path(os.path.expanduser(name))
        if os.path.isfile(path) and not (path.suffix.lower() == ".zip" or zipfile.is_zipfile(path)):
            endings = ", ".join((*TABLES, *jsonl.SUFFIXES, *graphml.SUFFIXES, ".zip"))
            raise InputError(f"{path}: no file of graphs, by its name; those that are read end in {endings}")
        if os.path.exists(path):
            return _read(path)
        if isinstance(name_or_path, Path) or os.sep in name or path.suffix:
            raise InputError(f"{path}: no such file or folder; data sets by name: {', '.join(sorted(DATASETS))}")
    root = root or data_root()
    source = find_source(name, root)
    if source.kind in ("tu", "ogb") and locate_dataset(name, root) is None:
        _refuse_other_file(name, root)
    return LOADERS[source.kind](source, root)


def find_source(name: str, root: Path) -> Source:
    """The data set called ``name``: in ``DATASETS``, in the TU or OGB collection, or in the folder ``root``."""
    if source := _by_stem().get(name):
        return source
    if name in OGB_UNREADABLE:
        raise InputError(f"{name} cannot be read: {OGB_UNREADABLE[name]}; take another data set")
    if name in TU_NAMES or name in OGB_ARCHIVES:
        kind = "tu" if name in TU_NAMES else "ogb"
        return Source(name, kind, "", 0, 0, 0.0, 0.0, metric="", archive=OGB_ARCHIVES.get(name, ""))
    if name and (path := locate_dataset(name, root)):
        return Source(name, "ogb" if is_ogb_layout(path) else "tu", "", 0, 0, 0.0, 0.0, metric="")
    load_plugins()
    if name not in DATASETS:
        _refuse_other_file(name, root)
    return lookup(DATASETS, name, "data set", also=(*TU_NAMES, *OGB_ARCHIVES))


def _refuse_other_file(name: str, root: Path) -> None:
    """Raise ``InputError`` where a file with graphs is called ``name`` but for its suffix: its path must be given."""
    suffixes = (*TABLES, *jsonl.SUFFIXES, *graphml.SUFFIXES, ".zip")
    for path in (
        folder / f"{name}{suffix}{gz}" for folder in (Path(), root) for suffix in suffixes for gz in ("", ".gz")
    ):
        if os.path.exists(path):
            raise InputError(
                f"{name} is no data set in {root}, but there is the file {path}; give its path, with the suffix, to "
                "read it"
            )


def register_dataset(
    name: str, description: str = ""
) -> Callable[[Callable[[], PackedDataset]], Callable[[], PackedDataset]]:
    """Decorate a function that makes a data set of one's own: ``load_dataset`` and the command line know its name.

    Args:
        name: The name of the data set.
        description: What ``mnagt datasets`` says about it.

    >>> from mnagt import from_networkx, load_dataset, register_dataset
    >>> import networkx as nx
    >>> @register_dataset("two-rings", "rings of three and of four nodes")
    ... def two_rings():
    ...     from mnagt import from_graphs
    ...     return from_graphs([nx.cycle_graph(3), nx.cycle_graph(4)], targets=["odd", "even"])
    >>> len(load_dataset("two-rings"))
    2
    >>> del DATASETS["two-rings"]
    """

    def add(read: Callable[[], PackedDataset]) -> Callable[[], PackedDataset]:
        source = Source(name, "plugin", description, 0, 0, 0.0, 0.0, build=read)
        add_entry(DATASETS, name, source, "data set")
        return read

    return add


def is_molecule_table(path: str | Path) -> bool:
    """Whether a file of this name is a table of molecules."""
    return str(path).lower().removesuffix(".gz").endswith(TABLES)


def find_graph_reader(path: str | Path) -> Callable[[], AttributedGraphs] | None:
    """What reads the JSONL, the GraphML or the three tables at ``path``; None where it is none of them."""
    if str(path) in DATASETS:
        return None
    path = Path(os.path.expanduser(path))
    suffixes = {jsonl.SUFFIXES: jsonl.read_jsonl, graphml.SUFFIXES: graphml.read_graphml}
    for suffix, read in suffixes.items():
        if path.name.lower().removesuffix(".gz").endswith(suffix):
            if not os.path.exists(path):
                hint = suggest_file(path) or "give graphs of your own, or the name of a data set"
                raise InputError(f"{path}: no such file; {hint}")
            return partial(read, path)
    if not os.path.isdir(path):  # unlike Path.is_dir, False for a SMILES too long for a name
        return None
    if node_edge_tables.find_table_files(path):
        return partial(node_edge_tables.read_node_edge_tables, path)
    return partial(graphml.read_graphml, path) if graphml.graphml_files(path) else None


def category_meanings(dataset: PackedDataset, column: str) -> tuple[str, ...]:
    """What the categories of ``column`` ('node_labels/0', ..., or 'classes') stand for, as far as is known."""
    values = getattr(dataset.task, "classes", ()) if column == "classes" else dataset.vocabularies.get(column, ())
    published = DATASETS[dataset.name].meanings.get(column, {}) if dataset.name in DATASETS else {}
    return tuple(published.get(value, value) for value in values)


def locate_dataset(name: str, root: Path) -> Path | None:
    """Where the data set called ``name`` lies; None if it would have to be downloaded."""
    marks = [f"{inner}{name}_A.txt" for inner in ("", "raw/", f"{name}/")]
    source, stems = _by_stem().get(name), (name,)
    if source is not None and source.kind in ("ogb", "peptides"):
        marks, stems = [str(peptides.TABLE) if source.kind == "peptides" else OGB_MARK], source.stems
    elif source is None and name not in TU_NAMES:
        marks, stems = [*marks, OGB_MARK], (name, name.replace("-", "_"))
    for stem in stems:
        zipped, folder = root / f"{stem}.zip", root / stem
        if os.path.exists(zipped):
            return zipped
        if any(os.path.exists(folder / mark) for mark in marks):
            return folder
    embedded = EMBEDDED / f"{name}.zip"
    return embedded if os.path.exists(embedded) else None  # False for a SMILES too long for a name


def _by_stem() -> dict[str, Source]:
    """The data sets by what their zips and folders may be called."""
    return {stem: source for source in DATASETS.values() for stem in source.stems}


def _load_ogb(source: Source, root: Path) -> PackedDataset:
    return _read_ogb(
        locate_dataset(source.name, root) or download.download_ogb(source.name, source.archive, root), source
    )


def _load_peptides(source: Source, root: Path) -> PackedDataset:
    folder = locate_dataset(source.name, root)
    if folder is None:
        raise InputError(
            f"{source.name} is not in {root}: put {peptides.TABLE.name} of the Long Range Graph Benchmark into "
            f"{root / source.stems[1] / 'raw'}, and train.csv, valid.csv and test.csv with the indices of its split "
            f"into {root / source.stems[1] / peptides.SPLIT}"
        )
    files = [folder / peptides.TABLE, *sorted((folder / peptides.SPLIT).glob("*"))]
    parts = [part for file in files for part in (file.name, file)]
    build = partial(peptides.read_peptides, folder, source.name)
    return load_or_build(peptides.VERSION, rdkit_version(), *parts, build=build)


def _load_stdlib(source: Source, root: Path) -> PackedDataset:
    """Made from the sources of the interpreter that runs, whose version is in its name."""
    parts = (code.VERSION, ogb.VERSION, code.stdlib_name(), str(code.stdlib_folder()))
    return load_or_build(*parts, build=code.read_stdlib)


def _load_plugin(source: Source, root: Path) -> PackedDataset:
    assert source.build is not None
    return replace(source.build(), name=source.name)


def _read(path: Path) -> PackedDataset:
    if is_packed_folder(path):
        return open_packed(path)
    return _read_ogb(path) if is_ogb_layout(path) else _read_tu(path)


def _read_tu(path: Path) -> PackedDataset:
    parts = [part for file in find_tu_files(path).paths for part in (file.name, file)]
    return load_or_build(tu.VERSION, *parts, build=lambda: tu.read_tu(path))


def _read_ogb(path: Path, source: Source | None = None) -> PackedDataset:
    """The task is known by the name of the source, or of the folder."""
    files = find_ogb_files(path)
    source = source or _by_stem().get(files.name)
    name, metric = (files.name, None) if source is None else (source.name, source.metric or None)
    parts = [part for file in files.paths for part in (f"{file.parent.name}/{file.name}", file)]
    build = partial(ogb.read_ogb, path, name=name, metric=metric)
    return load_or_build(ogb.VERSION, name, metric or "", *parts, build=build)


LOADERS: dict[str, Callable[[Source, Path], PackedDataset]] = {
    "tu": lambda source, root: _read_tu(locate_dataset(source.name, root) or download.download_tu(source.name, root)),
    "ogb": _load_ogb,
    "peptides": _load_peptides,
    "stdlib": _load_stdlib,
    "synthetic": lambda source, root: make_synthetic(source.name),
    "plugin": _load_plugin,
}
