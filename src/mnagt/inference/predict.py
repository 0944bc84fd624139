"""Predictions, scores, calibration and embeddings by the model in a folder, for graphs from a file or data set."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.readers import descriptor_columns
from mnagt.data.readers.code import read_functions
from mnagt.data.readers.code_trees import encode_functions
from mnagt.data.readers.molecule_table import read_molecule_file
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.readers.text_table import TABLES, Table
from mnagt.data.registry import find_graph_reader, is_molecule_table, load_dataset
from mnagt.data.splits import PARTS
from mnagt.data.table_config import TableConfig
from mnagt.devices import pick_device
from mnagt.errors import InputError, explain_missing, join_names
from mnagt.files import write_atomically, write_record
from mnagt.graphs.molecules import choose_row_format, find_molecule_format
from mnagt.inference.calibration import Calibration, fit_calibration
from mnagt.inference.ensemble import load_models
from mnagt.inference.model_folder import CALIBRATION, TrainedModel, distance_column, load_model
from mnagt.metrics import Reliability
from mnagt.runs.config import RunConfig
from mnagt.runs.folder import load_run_dataset, load_run_split, read_run_config, read_split
from mnagt.runs.shared_graphs import warn_of_seen
from mnagt.settings import from_dict
from mnagt.tasks import IntervalCoverage, Task, Unlabelled

_LEVELS = (0.8, 0.9, 0.95)
"""Levels whose coverage ``calibrate`` measures."""

_log = logging.getLogger(__name__)


def evaluate(
    folder: Path | str,
    *,
    dataset: str | None = None,
    part: str = "test",
    device: str = "auto",
    smiles: str | None = None,
    targets: Sequence[str] | None = None,
    descriptors: str | None = None,
) -> dict[str, Any]:
    """Score the model in a folder on a part of its data set, or on all graphs of another.

    Args:
        folder: The folder of a run.
        dataset: Name or path of another data set; it may be a table of molecules.
        part: 'train', 'valid', 'test' or 'all', of the model's own data set.
        device: cpu, cuda, ...; auto takes a GPU if there is one.
        smiles: The column of SMILES of another table, or columns ('solute,solvent'); by default named as in training.
        targets: Its target columns; by default named as in training.
        descriptors: A table with the columns that the model reads beside the graph; by default another table's own.

    Returns:
        The number of graphs, all metrics of the task, the one that chose the epoch first, and their ``intervals``:
        low and high end of bootstrap intervals at the level 0.95, by metric.

    >>> from mnagt import evaluate
    >>> list(evaluate("runs/mutag"))
    ['graphs', 'accuracy', 'rocauc', 'ap', 'mcc', 'f1', 'brier', 'ece', 'intervals']
    """
    if part not in ("all", *PARTS):
        raise InputError(f"part must be one of {', '.join(PARTS)} or all, got {part!r}")
    folder, trained = Path(folder), load_models([folder], device=device)
    if dataset is None:
        if smiles or targets or descriptors:
            raise InputError(
                "columns can only be chosen of another table (--dataset); the model keeps those of its own"
            )
        graphs = load_run_dataset(read_run_config(folder))
    else:
        graphs = _load_with_targets(trained, dataset, smiles, targets, descriptors)
        warn_of_seen(folder, graphs)
    indices = torch.arange(len(graphs)) if dataset or part == "all" else getattr(read_split(folder, graphs), part)
    if not trained.task.can_score(graphs.task):
        raise InputError(
            f"the targets of {graphs.name} are {graphs.task.describe()}, and the model predicts "
            f"{trained.task.describe()}; choose graphs with the same targets"
        )
    output = trained.outputs(graphs, indices, pick_device(device))
    task, target = trained.task, graphs.targets[indices]
    return {"graphs": len(indices), **task.scores(output, target), "intervals": task.score_intervals(output, target)}


def _load_with_targets(
    trained: TrainedModel, dataset: str, smiles: str | None, targets: Sequence[str] | None, descriptors: str | None
) -> PackedDataset:
    """The data set as ``trained`` reads it, with the targets that it predicts."""
    run = _run_config(trained)
    named = targets or trained.task.target_columns(None) or run.targets
    if is_molecule_table(dataset):
        columns = {"smiles": smiles or run.smiles, "targets": named, "columns": trained.columns}
        return load_dataset(dataset, **columns, options=TableConfig(descriptor_file=descriptors), task=trained.task)
    if smiles is None and find_graph_reader(dataset):
        return load_dataset(dataset, targets=named, task=trained.task, columns=trained.columns or None)
    return load_dataset(dataset, smiles=smiles, targets=targets)


def _run_config(trained: TrainedModel) -> RunConfig:
    """The settings that the model was trained with, as far as it keeps them."""
    return from_dict(RunConfig, trained.origin.get("run", {}), where="the model's origin")


LevelCoverage = dict[float, tuple[IntervalCoverage, IntervalCoverage | None]]


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and its effect on the test part."""

    calibration: Calibration
    before: Reliability | None
    """On the test part; None for regression."""
    after: Reliability | None
    test_graphs: int
    coverage: dict[str, LevelCoverage]
    """Of each column of numbers, by level: that of the conformal intervals of the test part, and of those that the
    model itself gives, if it does (``uncertainty``)."""


def calibrate(folder: Path | str, *, device: str = "auto") -> Calibrated:
    """Fit temperature scaling and prediction sets on the validation part, and save them in the model's folder.

    The epoch was selected on the validation part too, so calibration is slightly optimistic; the test part shows by how
    much.

    Args:
        folder: The folder of a run.
        device: cpu, cuda, ...; auto takes a GPU if there is one.

    >>> from mnagt import calibrate, load_model
    >>> calibrate("runs/a").calibration == load_model("runs/a").calibration
    True
    """
    folder, trained = Path(folder), load_models([folder], device=device)
    dataset, split = load_run_split(folder)
    valid, test = (trained.outputs(dataset, part, pick_device(device)) for part in (split.valid, split.test))
    calibration = fit_calibration(trained.task, valid, dataset.targets[split.valid])
    write_record(folder / CALIBRATION, calibration.to_dict())
    target = dataset.targets[split.test]
    calibrated = trained.task.apply_temperature(test, calibration.temperature)
    before, after = (trained.task.reliability(output, target) for output in (test, calibrated))
    coverage: dict[str, LevelCoverage] = {}
    for level in _LEVELS:
        for name, pair in _measure_coverage(trained.task, calibration, test, target, level).items():
            coverage.setdefault(name, {})[level] = pair
    return Calibrated(calibration, before, after, len(split.test), coverage)


def _measure_coverage(
    task: Task, calibration: Calibration, output: Tensor, target: Tensor, level: float
) -> dict[str, tuple[IntervalCoverage, IntervalCoverage | None]]:
    """The coverage of intervals of each column of numbers, conformal and as the model gives them."""
    conformal = task.interval_coverage(output, target, calibration.threshold(level))
    thresholds = task.model_thresholds(level)
    coverages = {} if thresholds is None else task.interval_coverage(output, target, thresholds)
    return {name: (coverage, coverages.get(name)) for name, coverage in conformal.items()}


def predict(
    folder: Path | str | Sequence[Path | str],
    dataset: str,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    descriptors: str | None = None,
    device: str = "auto",
    level: float | None = None,
    dropout_samples: int = 0,
) -> dict[str, list]:
    """Predictions as columns of a table, one row a graph.

    Args:
        folder: The folder of a run; several make an ensemble.
        dataset: Name or path of a data set, a table of molecules, one SMILES, or a Python file, to name functions.
        graphs: Only these graphs, rows or functions, counted from 0.
        smiles: The column of SMILES of a table; by default named as in training, or guessed.
        descriptors: A table with the columns that the model reads beside the graph; by default those of ``dataset``.
        device: cpu, cuda, ...; auto takes a GPU if there is one.
        level: Add prediction sets or intervals of this coverage (0.9); the model must be calibrated.
        dropout_samples: Average so many predictions with dropout (Monte Carlo dropout), and say how far they agree.

    Returns:
        The graph's number or name and the columns of ``Task.decode``. For a table, its own columns come first, and a
        note comes last; predictions of rows that cannot be read are None. For a Python file, line and name of each
        function, and the most probable names by the model, each with its probability. The column ``distance`` is above
        1 for graphs unlike those of the training; models without a domain lack it.

    >>> from mnagt import predict
    >>> list(predict("runs/mutag", "MUTAG", graphs=[0, 1]))
    ['graph', 'prediction', 'p(-1)', 'p(1)', 'distance']
    """
    folders = [folder] if isinstance(folder, Path | str) else list(folder)
    options = {"is_calibrated": level is not None, "dropout_samples": dropout_samples}
    trained = load_models(folders, device=device, **options)
    selected = select_graphs(trained, dataset, graphs=graphs, smiles=smiles, descriptors=descriptors)
    if not is_source(dataset):
        return selected.join(trained.predict(selected.graphs, selected.indices, pick_device(device), level=level))
    if level is not None:
        raise InputError(f"{dataset}: a level is for classes, labels and numbers, not for names; leave it out")
    columns: dict[str, list] = {}
    output, distances = trained.outputs_with_distances(selected.graphs, device=pick_device(device))
    for number, suggestions in enumerate(zip(*trained.suggest(output), strict=True), start=1):
        columns[f"name {number}"] = ["_".join(words) for words, _ in suggestions]
        columns[f"p({number})"] = [probability for _, probability in suggestions]
    return selected.join(columns | distance_column(distances))


def embed_to(
    out: Path,
    folder: Path | str,
    dataset: str,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    descriptors: str | None = None,
    device: str = "auto",
) -> tuple[int, int]:
    """Write the embedding of each graph that ``predict`` would predict for; their number and dimension.

    ``out`` ends in .npy, a matrix, or in .parquet, with the columns graph, name and v0, v1, ... Rows of a table that
    give no graph are rows of NaN, and null in Parquet.
    """
    if out.suffix not in (".npy", ".parquet"):
        raise InputError(f"{out}: vectors are written as .npy or .parquet; choose such a name")
    if out.suffix == ".parquet":
        with explain_missing(f"{out}: Parquet", "parquet"):
            import pyarrow
    trained = load_model(folder)
    selected = select_graphs(trained, dataset, graphs=graphs, smiles=smiles, descriptors=descriptors)
    if len(selected.indices) == 0:
        raise InputError(f"{dataset}: no graph to embed")
    embedded = trained.embed(selected.graphs, selected.indices, pick_device(device))
    vectors = torch.full((selected.count, embedded.shape[1]), torch.nan).index_copy(0, selected.rows, embedded).numpy()
    with write_atomically(out) as scratch:
        if out.suffix == ".npy":
            np.save(scratch, vectors)
        else:
            import pyarrow
            from pyarrow import parquet

            name_of = dict(zip(selected.rows.tolist(), selected.names, strict=True))
            names = pyarrow.array([name_of.get(row) for row in range(len(vectors))], pyarrow.string())
            columns = {"graph": list(range(len(vectors)) if graphs is None else graphs), "name": names}
            for i, column in enumerate(vectors.T):
                columns[f"v{i}"] = pyarrow.array(column, from_pandas=True)  # NaN is null
            parquet.write_table(pyarrow.table(columns), scratch)
    return vectors.shape


@dataclass(frozen=True, eq=False)
class SelectedGraphs:
    """Graphs to predict for."""

    graphs: PackedDataset
    indices: Int[Tensor, "some"]
    """Of the selected ones among ``graphs``."""
    names: list[str]
    """The name of each for a report."""
    columns: Mapping[str, Sequence]
    """What the input says: columns with a row for each graph, or for each row of a table."""
    rows: Int[Tensor, "some"]
    """The row of each graph: rows of a table may give no graph."""
    notes: Mapping[int, str] | None = None
    """For a table: why rows give no graph, by row."""

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def join(self, predictions: Mapping[str, list]) -> dict[str, list]:
        """The input's columns, then those of ``predictions``, with None in rows that give no graph, and the notes."""
        rows, columns = self.rows.tolist(), {name: list(column) for name, column in self.columns.items()}
        added = {name: dict(zip(rows, values, strict=True)) for name, values in predictions.items()}
        if self.notes is not None:
            added["note"] = dict(self.notes)
        for name, values in added.items():
            while name in columns:  # a table may have the targets in it, too
                name = f"predicted {name}"
            columns[name] = [values.get(row) for row in range(self.count)]
        return columns


def select_graphs(
    trained: TrainedModel,
    dataset: str,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    descriptors: str | None = None,
) -> SelectedGraphs:
    """The graphs that ``predict`` predicts for, as ``trained`` reads them."""
    if is_molecule_table(dataset):
        return _select_rows(read_molecule_file(Path(dataset).expanduser()), trained, graphs, smiles, descriptors)
    if smiles is not None:
        raise InputError(f"{dataset}: a column can only be chosen of a table ({', '.join(TABLES)})")
    if is_source(dataset):
        return _select_functions(Path(dataset).expanduser(), trained, graphs)
    try:
        if read := find_graph_reader(dataset):
            read_graphs = read()
            source = read_graphs.pack(task=Unlabelled(), columns=trained.columns or None)
            all_ids = read_graphs.ids
        else:
            source = load_dataset(dataset)
            all_ids = range(len(source))
    except InputError as error:
        if os.path.exists(dataset) or (row_format := find_molecule_format(trained.model.features)) is None:
            raise
        cells = [dataset] if row_format.components == 1 else dataset.split(",")
        if refused := read_smiles([cells], row_format=row_format).refused:
            reason = f"cannot be read as {row_format.describe()} ({refused[0].explain()})"
            raise InputError(f"{dataset!r} {reason}; and {error}") from None
        columns = {"smiles" if len(cells) == 1 else f"smiles {n}": [cell] for n, cell in enumerate(cells, start=1)}
        return _select_rows(Table(dataset, columns, [1]), trained, graphs, ",".join(columns), descriptors)
    indices = _check_indices(graphs, len(source), f"{source.name} has graphs")
    ids = [all_ids[index] for index in indices.tolist()]
    names = [f"graph {each}" for each in ids]
    return SelectedGraphs(source, indices, names, {"graph": ids}, torch.arange(len(indices)))


def _select_rows(
    table: Table, trained: TrainedModel, rows: Sequence[int] | None, smiles: str | None, descriptors: str | None
) -> SelectedGraphs:
    table = table.select(_check_indices(rows, len(table), f"{table.label} has rows").tolist())
    columns = find_smiles_columns(table, trained, smiles)
    molecules = read_smiles(
        table.read_rows(columns), name=table.name, row_format=choose_row_format(trained.model.features)
    )
    kept = molecules.kept.tolist()
    described = trained.columns.get(descriptor_columns.KIND, ())
    graphs = descriptor_columns.with_descriptors(molecules.graphs, table.select(kept), columns, described, descriptors)
    graphs = trained.align(graphs)
    if molecules.refused:
        _log.warning("%s: %d of %d rows could not be read", table.label, len(molecules.refused), len(table))
    notes = {row.row: row.explain(columns) for row in molecules.refused}
    named = table.find_name_column()
    names = [f"line {table.lines[row]}" for row in kept]
    if named is not None:
        cells = table.column(named)
        names = [f"{cells[row]}, {line}" if cells[row] else line for row, line in zip(kept, names, strict=True)]
    return SelectedGraphs(graphs, torch.arange(len(kept)), names, table.columns, molecules.kept, notes)


def find_smiles_columns(table: Table, trained: TrainedModel, names: str | None) -> tuple[str, ...]:
    """The columns ``names``, or else those that are named as in training, or the one that is called as usual."""
    in_training, row_format = _run_config(trained).smiles, choose_row_format(trained.model.features)
    if names is None and in_training and (row_format.components > 1 or in_training in table.columns):
        names = in_training
    columns = table.find_smiles_columns(names)
    if len(columns) != row_format.components:
        was = f", in training {in_training}" if in_training else ""
        raise InputError(
            f"{table.label}: {join_names(columns)} for a model that reads {row_format.describe()}; name as many "
            f"columns (--smiles{was})"
        )
    return columns


def _check_indices(graphs: Sequence[int] | None, count: int, has: str) -> Int[Tensor, "some"]:
    """The numbers of the graphs as a tensor; all, if None."""
    for graph in graphs or ():
        if not 0 <= graph < count:
            raise InputError(f"{has} 0 to {count - 1}; asked for {graph}")
    return torch.arange(count) if graphs is None else torch.tensor(list(graphs), dtype=torch.long)


def is_source(path: str | Path) -> bool:
    """Whether a file of this name is Python source."""
    return str(path).endswith(".py")


def _select_functions(path: Path, trained: TrainedModel, functions: Sequence[int] | None) -> SelectedGraphs:
    vocabularies = trained.code_vocabularies
    if vocabularies is None:
        raise InputError(
            f"{path}: only a model of code can name functions, and this one was trained on "
            f"{trained.origin.get('dataset', 'other graphs')}; try: mnagt train stdlib"
        )
    read = read_functions(path)
    read = [read[number] for number in _check_indices(functions, len(read), f"{path} has functions").tolist()]
    if clipped := sum(function.is_clipped for function in read):
        _log.warning("%s: %d functions are so long that only their beginning is read", path, clipped)
    lines, names, indices = [each.line for each in read], [each.name for each in read], torch.arange(len(read))
    titles = [f"{name}, line {line}" for name, line in zip(names, lines, strict=True)]
    columns = {"line": lines, "function": names}
    return SelectedGraphs(encode_functions(read, *vocabularies), indices, titles, columns, indices)
