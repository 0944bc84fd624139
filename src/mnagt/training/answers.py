"""What a trained model in a folder says of graphs, and how good that is."""

from collections.abc import Sequence
from pathlib import Path

import torch

from mnagt.data import load_dataset
from mnagt.data.splits import PARTS
from mnagt.errors import InputError
from mnagt.settings import from_dict
from mnagt.tasks import Task, task_to_dict
from mnagt.training.config import RunConfig
from mnagt.training.devices import pick_device
from mnagt.training.model_folder import load_model
from mnagt.training.run import RUN, kept, kept_split


def evaluate(
    folder: Path | str, *, dataset: str | None = None, part: str = "test", device: str = "auto"
) -> dict[str, float | int]:
    """Scores of the model in ``folder``, on a part of the graphs it was trained from or on all of another data set."""
    if part not in ("all", *PARTS):
        raise InputError(f"part must be one of {', '.join(PARTS)} or all, got {part!r}")
    folder = Path(folder)
    trained = load_model(folder)
    graphs = load_dataset(dataset or from_dict(RunConfig, kept(folder, "config"), where=str(folder / RUN)).dataset)
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


def _question(task: Task) -> str:
    """What is asked, without what was taken from training targets."""
    told = task_to_dict(task)
    return f"{task.kind} ({', '.join(told.get('classes') or told.get('names', ()))})"


def predict(
    folder: Path | str, dataset: str, *, graphs: Sequence[int] | None = None, device: str = "auto"
) -> dict[str, list]:
    """Answers of the model in ``folder`` as columns of a table: the graph's number, then what the task says of it."""
    trained, source = load_model(folder), load_dataset(dataset)
    graphs = range(len(source)) if graphs is None else graphs
    for graph in graphs:
        if not 0 <= graph < len(source):
            raise InputError(f"{source.name} has graphs 0 to {len(source) - 1}; asked for {graph}")
    indices = torch.tensor(list(graphs), dtype=torch.long)
    return {"graph": indices.tolist(), **trained.predict(source, indices, pick_device(device))}
