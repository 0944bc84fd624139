"""What a trained model in a folder says of graphs, and how good that is."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data import TABLES, is_table, load_dataset, own_graphs
from mnagt.data.code import functions_in
from mnagt.data.code_layout import graphs_of
from mnagt.data.code_trees import Function
from mnagt.data.molecule_table import Table, read_table
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import FEATURES, Molecules, molecules
from mnagt.data.splits import PARTS
from mnagt.errors import InputError
from mnagt.settings import from_dict
from mnagt.tasks import UNKNOWN, SubTokens, Task, Unasked, task_to_dict
from mnagt.training.config import RunConfig
from mnagt.training.devices import pick_device
from mnagt.training.model_folder import Trained, load_model
from mnagt.training.run import RUN, dataset_of, kept, kept_split
from mnagt.uncertainty.folders import load_models

_log = logging.getLogger(__name__)


def evaluate(
    folder: Path | str,
    *,
    dataset: str | None = None,
    part: str = "test",
    device: str = "auto",
    smiles: str | None = None,
    targets: Sequence[str] | None = None,
) -> dict[str, float | int]:
    """Scores of the model in ``folder``, on a part of the graphs it was trained from or on all of another data set.

    That may be a table of molecules, whose columns are called as in training unless ``smiles`` and ``targets`` are
    given.
    """
    if part not in ("all", *PARTS):
        raise InputError(f"part must be one of {', '.join(PARTS)} or all, got {part!r}")
    folder = Path(folder)
    trained = load_model(folder)
    if dataset is None:
        if smiles or targets:
            raise InputError(
                "columns can only be chosen of another table (--dataset); the model keeps those of its own"
            )
        graphs = dataset_of(from_dict(RunConfig, kept(folder, "config"), where=str(folder / RUN)))
    elif is_table(dataset):
        run = _run(trained)
        columns = {"smiles": smiles or run.smiles, "targets": targets or run.targets}
        graphs = load_dataset(dataset, **columns, task=trained.task)
    elif smiles is None and own_graphs(dataset):
        chosen = targets or _run(trained).targets
        graphs = load_dataset(dataset, targets=chosen, task=trained.task, columns=trained.columns or None)
    else:
        graphs = load_dataset(dataset, smiles=smiles, targets=targets)
    if dataset is not None or part == "all":
        indices = torch.arange(len(graphs))
    else:
        indices = getattr(kept_split(folder, graphs), part)
    asked, answered = _question(graphs.task), _question(trained.task)
    if asked != answered:
        raise InputError(
            f"{graphs.name} asks for {asked}, and the model answers {answered}; choose graphs like its own"
        )
    output = trained.outputs(graphs, indices, pick_device(device))
    return {"graphs": len(indices), **trained.task.scores(output, graphs.targets[indices])}


def _run(trained: Trained) -> RunConfig:
    """How the model was trained, as far as it tells."""
    return from_dict(RunConfig, trained.origin.get("run", {}), where="the model's origin")


def _question(task: Task) -> str:
    """What is asked, without what was taken from training targets."""
    told = task_to_dict(task)
    return f"{task.kind} ({', '.join(told.get('classes') or told.get('names', ()))})"


def predict(
    folder: Path | str | Sequence[Path | str],
    dataset: str,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    device: str = "auto",
    level: float | None = None,
) -> dict[str, list]:
    """Answers of the model in ``folder`` as columns of a table: the graph's number, then what the task says of it.

    Graphs of your own go by their name: ``id`` in JSONL and in the table of graphs, or the file.

    ``dataset`` may also be one SMILES, or a table of molecules, whose column of SMILES is called as in training, or as
    its name tells, unless ``smiles`` is given. Then the table's own columns come first, and last a note on each row
    that could not be read: its answers are None.
    Of a Python file the functions are named (``suggested_names``).

    Several folders answer as one (``Ensemble``). With a ``level`` there are also sets or intervals that hold the truth
    in that share of cases (``calibrate`` comes first).
    """
    folders = [folder] if isinstance(folder, Path | str) else list(folder)
    trained = load_models(folders, is_calibrated=level is not None, device=device)
    if is_table(dataset):
        return _beside(read_table(Path(dataset).expanduser()), trained, graphs, smiles, device, level)
    if smiles is not None:
        raise InputError(f"{dataset}: a column can only be chosen of a table ({', '.join(TABLES)})")
    if is_source(dataset):
        if level is not None:
            raise InputError(f"{dataset}: a level is for classes, questions and numbers, not for names; leave it out")
        return suggested_names(trained, Path(dataset).expanduser(), functions=graphs, device=device)
    try:
        source, ids = _graphs(trained, dataset)
    except InputError as error:
        if os.path.exists(dataset) or trained.model.features != FEATURES:
            raise
        return _beside(_only(dataset, error), trained, graphs, "smiles", device, level)
    indices = _picked(graphs, len(source), f"{source.name} has graphs")
    return {
        "graph": [ids[index] for index in indices.tolist()],
        **trained.predict(source, indices, pick_device(device), level=level),
    }


@dataclass(frozen=True, eq=False)
class Asked:
    """Graphs that a model is asked about."""

    graphs: PackedDataset
    indices: Int[Tensor, "some"]
    """Those meant."""
    names: list[str]
    """What to call each."""
    rows: Int[Tensor, "some"]
    """The place of each among all that was asked for: of a table, some rows may give no graph."""
    count: int
    """All that was asked for."""


def asked(trained: Trained, dataset: str, *, graphs: Sequence[int] | None = None, smiles: str | None = None) -> Asked:
    """The graphs that ``predict`` would be about."""
    if is_table(dataset):
        return _asked_of_table(read_table(Path(dataset).expanduser()), trained, graphs, smiles)
    if smiles is not None:
        raise InputError(f"{dataset}: a column can only be chosen of a table ({', '.join(TABLES)})")
    if is_source(dataset):
        found, trees = _functions(trained, Path(dataset).expanduser(), graphs)
        every, names = torch.arange(len(found)), [f"{each.name}, line {each.line}" for each in found]
        return Asked(trees, every, names, every, len(found))
    try:
        source, ids = _graphs(trained, dataset)
    except InputError as error:
        if os.path.exists(dataset) or trained.model.features != FEATURES:
            raise
        return _asked_of_table(_only(dataset, error), trained, graphs, "smiles")
    indices = _picked(graphs, len(source), f"{source.name} has graphs")
    names = [f"graph {ids[index]}" for index in indices.tolist()]
    return Asked(source, indices, names, torch.arange(len(indices)), len(indices))


def _asked_of_table(table: Table, trained: Trained, rows: Sequence[int] | None, smiles: str | None) -> Asked:
    table, read = _read(table, trained, rows, smiles)
    names = [f"line {table.lines[row]}" for row in read.kept.tolist()]
    return Asked(read.graphs, torch.arange(len(read.graphs)), names, read.kept, len(table.rows))


def _graphs(trained: Trained, dataset: str) -> tuple[PackedDataset, Sequence[str | int]]:
    """The graphs there, whatever their targets, and what each is called: its number, or what its own file says."""
    if own := own_graphs(dataset):
        told = own()
        return told.packed(task=Unasked(), columns=trained.columns or None), told.ids
    graphs = load_dataset(dataset)
    return graphs, range(len(graphs))


def _picked(graphs: Sequence[int] | None, count: int, has: str) -> Int[Tensor, "some"]:
    """The graphs asked for, or all."""
    for graph in graphs or ():
        if not 0 <= graph < count:
            raise InputError(f"{has} 0 to {count - 1}; asked for {graph}")
    return torch.arange(count) if graphs is None else torch.tensor(list(graphs), dtype=torch.long)


def _only(smiles: str, error: InputError) -> Table:
    """A table of one molecule; ``error`` says that it is no data set either."""
    if refused := molecules([smiles]).refused:
        raise InputError(f"{smiles!r} cannot be read as a molecule ({refused[0].reason}); and {error}") from None
    return Table(smiles, ("smiles",), [[smiles]], [1])


def _read(table: Table, trained: Trained, rows: Sequence[int] | None, smiles: str | None) -> tuple[Table, Molecules]:
    """The rows asked for, and what became of their SMILES."""
    table = table.taken(_picked(rows, len(table.rows), f"{table.label} has rows").tolist())
    told = _run(trained).smiles
    column = table.smiles_column(smiles or (told if told in table.columns else None))
    read = molecules(table.column(column), name=table.name)
    trained.check(read.graphs)
    if read.refused:
        _log.warning("%s: %d of %d rows could not be read", table.label, len(read.refused), len(table.rows))
    return table, read


def _beside(
    table: Table,
    trained: Trained,
    rows: Sequence[int] | None,
    smiles: str | None,
    device: str,
    level: float | None,
) -> dict[str, list]:
    """The table's rows, and beside them what the model says of their molecules."""
    table, read = _read(table, trained, rows, smiles)
    if len(read.graphs):
        answers = trained.predict(read.graphs, device=pick_device(device), level=level)
    else:
        answers = trained.answers(torch.zeros(0, trained.task.outputs), level)
    kept = read.kept.tolist()
    added = {name: dict(zip(kept, values, strict=True)) for name, values in answers.items()}
    added["note"] = {row.row: row.reason for row in read.refused}
    columns: dict[str, list] = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
    for name, values in added.items():
        while name in columns:  # a table may have the answers in it, too
            name = f"predicted {name}"
        columns[name] = [values.get(row) for row in range(len(table.rows))]
    return columns


def is_source(path: str | Path) -> bool:
    """Whether a file of this name is Python source."""
    return str(path).endswith(".py")


def suggested_names(
    trained: Trained, path: Path, *, functions: Sequence[int] | None = None, device: str = "auto"
) -> dict[str, list]:
    """The functions of a Python file, or those chosen by number, and what a model of code would call them.

    Columns: line and name of each, then the likeliest names, and how likely the model takes each to be.
    """
    found, graphs = _functions(trained, path, functions)
    assert isinstance(trained.task, SubTokens)
    output = trained.tempered(trained.outputs(graphs, device=pick_device(device)))
    table: dict[str, list] = {"line": [each.line for each in found], "function": [each.name for each in found]}
    for place, likeliest in enumerate(zip(*trained.task.suggestions(output), strict=True), start=1):
        table[f"name {place}"] = ["_".join(words) for words, _ in likeliest]
        table[f"p({place})"] = [probability for _, probability in likeliest]
    return table


def _functions(trained: Trained, path: Path, functions: Sequence[int] | None) -> tuple[list[Function], PackedDataset]:
    """The functions of the file that are asked for, and their graphs. Only models of code can be asked."""
    types, attributes = (trained.vocabularies.get(f"node_labels/{column}", ()) for column in (0, 1))
    if not isinstance(trained.task, SubTokens) or UNKNOWN not in types or UNKNOWN not in attributes:
        raise InputError(
            f"{path}: only a model of code can name functions, and this one was trained on "
            f"{trained.origin.get('dataset', 'other graphs')}; try: mnagt train stdlib"
        )
    found = functions_in(path)
    found = [found[number] for number in _picked(functions, len(found), f"{path} has functions").tolist()]
    if clipped := sum(function.is_clipped for function in found):
        _log.warning("%s: %d functions are so long that only their beginning is read", path, clipped)
    return found, graphs_of(found, types, attributes)
