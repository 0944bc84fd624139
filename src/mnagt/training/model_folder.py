"""A trained model in a folder that stands alone: ``config.json`` and ``model.safetensors`` rebuild it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import read_json, write_json, write_text
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.models import build_model
from mnagt.models.folded import Folded
from mnagt.models.graph_model import GraphModel
from mnagt.settings import from_dict
from mnagt.tasks import UNKNOWN, Task, Unasked, task_from_dict, task_to_dict
from mnagt.training.checkpoint import check_weights, load_tensors, load_weights, save_tensors
from mnagt.training.fit import outputs
from mnagt.training.model_card import model_card
from mnagt.training.model_files import (
    CALIBRATION,
    CARD,
    CONFIG,
    WEIGHTS,
    check_files,
    check_fingerprints,
    fingerprints,
)
from mnagt.uncertainty.calibration import Calibration, told
from mnagt.version import __version__

Graphs = PackedDataset | GraphBatch

SPARE_TENSORS = 64
"""Weights that may be made while a model is built, and not be its own."""
FEW = 32
"""Graphs that are answered at once by the folded model: with more, calls are no longer what they cost."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A model with all that it takes to use it."""

    model: GraphModel
    task: Task
    name: str
    """Its name in ``MODELS``."""
    settings: Mapping[str, Any]
    """The model's settings, in full."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: data set, run settings."""
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the categories that it learned from, in its order, by column: 'node_labels/0', ..."""
    calibration: Calibration | None = None
    """What it learned of itself from held-out graphs (``mnagt calibrate``)."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What the columns that it reads are called, where its graphs told, by kind: 'node_labels', ..."""

    def outputs(
        self, graphs: Graphs, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> Float[Tensor, "some outputs"]:
        """What the model says of these graphs (all, if none are named), in that order."""
        return self._of(self.model, graphs, indices, device)

    def quickest(self, graphs: int) -> GraphModel:
        """The model in the form that answers so many graphs at once fastest on a CPU, where it is."""
        return self._folded() if graphs <= FEW else self.model

    @cached_property
    def _folded(self) -> Folded:
        return Folded(self.model)

    def embed(
        self, graphs: Graphs, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> Float[Tensor, "some dim"]:
        """A vector for each of these graphs: what the model's head answers from."""
        return self._of(_Embeds(self.model), graphs, indices, device)

    def _of(
        self, model: nn.Module, graphs: Graphs, indices: Int[Tensor, "some"] | None, device: torch.device | str
    ) -> Float[Tensor, "some _"]:
        dataset = self.aligned(as_dataset(graphs)).to(device)
        indices = torch.arange(len(dataset)) if indices is None else indices
        if next(model.parameters()).device != torch.device(device):  # going through all of a model takes milliseconds
            model.to(device)
        model = self.quickest(len(indices)) if model is self.model and dataset.device.type == "cpu" else model
        return outputs(model, dataset, indices).cpu()

    def predict(
        self,
        graphs: Graphs,
        indices: Int[Tensor, "some"] | None = None,
        device: torch.device | str = "cpu",
        *,
        level: float | None = None,
    ) -> dict[str, list]:
        """Answers as columns of a table, one row a graph. The graphs may come as a batch (``from_pyg``, ...).

        With a ``level``, of a calibrated model: also sets or intervals that hold the truth in that share of cases.
        """
        return self.answers(self.outputs(graphs, indices, device), level)

    def answers(self, output: Float[Tensor, "some outputs"], level: float | None = None) -> dict[str, list]:
        """Outputs as ``predict`` gives them."""
        columns = self.task.decode(self.tempered(output))
        if level is None:
            return columns
        if self.calibration is None:
            raise InputError("the model is not calibrated, and no level can be promised; try: mnagt calibrate FOLDER")
        return columns | told(self.task, self.calibration, output, level)

    def tempered(self, output: Float[Tensor, "some outputs"]) -> Float[Tensor, "some outputs"]:
        """Outputs whose probabilities can be believed, if the model is calibrated."""
        return output if self.calibration is None else output / self.calibration.temperature

    def check(self, dataset: PackedDataset) -> None:
        """Refuse graphs whose columns the model cannot read."""
        for kind in ("nodes", "edges"):
            has, reads = getattr(dataset.features, kind), getattr(self.model.features, kind)
            if has.values != reads.values or len(has.labels) != len(reads.labels):
                raise InputError(
                    f"{dataset.name}: the model reads {len(reads.labels)} categorical and {reads.values} continuous "
                    f"columns of {kind}, and these graphs carry {len(has.labels)} and {has.values}; "
                    f"it was trained on {self.origin.get('dataset', 'other graphs')}"
                )
            for column, (there, known) in enumerate(zip(has.labels, reads.labels, strict=True)):
                key = f"{kind[:4]}_labels/{column}"
                goes_by_name = key in dataset.vocabularies and key in self.vocabularies  # ``aligned`` then says which
                if there > known and not goes_by_name:
                    raise InputError(
                        f"{dataset.name}: column {column} of {kind} has {there} categories, the model knows {known}; "
                        f"it was trained on {self.origin.get('dataset', 'other graphs')}"
                    )

    def aligned(self, dataset: PackedDataset) -> PackedDataset:
        """The graphs with categories numbered as in training: another file may lack some, and then counts otherwise.

        One that the model has not met is ``UNKNOWN`` to it, where it learned what to make of that, and else refused.
        """
        self.check(dataset)
        changed = {}
        for kind in ("node_labels", "edge_labels"):
            labels: Tensor | None = getattr(dataset, kind)
            if labels is None:
                continue
            for column in range(labels.shape[1]):
                key = f"{kind}/{column}"
                there, known = list(dataset.vocabularies.get(key, ())), list(self.vocabularies.get(key, ()))
                if not there or not known or there == known[: len(there)]:
                    continue
                place = {name: number for number, name in reversed(list(enumerate(known)))}
                for name in there:
                    if name not in place and UNKNOWN not in place:
                        called = f" ({self.columns[kind][column]!r})" if kind in self.columns else ""
                        raise InputError(
                            f"{dataset.name}: column {column}{called} of {kind} holds {name}, which the model has not "
                            f"met; it was trained on {self.origin.get('dataset', 'other graphs')}"
                        )
                numbers = [place[name if name in place else UNKNOWN] for name in there]
                number = torch.tensor([*numbers, -1])  # -1, 'none', stays -1
                changed.setdefault(kind, labels.clone())[:, column] = number.to(labels)[labels[:, column].long()]
        return replace(dataset, **changed)

    def save(self, folder: Path) -> None:
        """Write the model; the weights go last, so that a folder with weights is whole."""
        write_json(
            folder / CONFIG,
            {
                "mnagt": __version__,
                "model": {"name": self.name, "settings": dict(self.settings)},
                "features": asdict(self.model.features),
                "task": task_to_dict(self.task),
                "origin": dict(self.origin),
                "vocabularies": {column: list(names) for column, names in self.vocabularies.items()},
                "columns": {kind: list(names) for kind, names in self.columns.items()},
            },
        )
        write_text(folder / CARD, self.card())
        if self.calibration is not None:
            self.save_calibration(folder)
        weights = self.model.state_dict()
        save_tensors(folder / WEIGHTS, weights, fingerprints(folder / CONFIG, weights))

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the model, and only that, into a folder of its own: to keep, to hand on."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: there is something in it already; choose another folder")
        self.save(folder)

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "Trained":
        """The model in ``folder``, as ``load_model``."""
        return load_model(folder)

    def card(self) -> str:
        """What there is to know about the model, as Markdown."""
        return model_card(
            self.name,
            self.settings,
            self.task,
            self.model.features,
            self.model.parameter_count,
            self.origin,
            self.columns,
        )

    def save_calibration(self, folder: Path) -> None:
        """Write only that, beside the model."""
        assert self.calibration is not None
        write_json(folder / CALIBRATION, self.calibration.to_dict())


class _Embeds(nn.Module):
    """A model that stops before its head."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs dim"]:
        return self.model.embed(graph)


def as_dataset(graphs: Graphs) -> PackedDataset:
    """The graphs, which may come as a batch."""
    if isinstance(graphs, PackedDataset):
        return graphs
    return PackedDataset.from_batch(
        "these graphs", Unasked(), replace(graphs, targets=torch.zeros(graphs.num_graphs, 0))
    )


def built(name: str, settings: Mapping[str, Any], features: Features, outputs: int) -> GraphModel:
    """The model, or an error that names it where PyTorch refuses a setting or has no room."""
    try:
        return build_model(name, settings, features, outputs)
    except InputError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        raise InputError(f"model {name}: {' '.join(str(error).split())}; change its settings") from error


@contextmanager
def _parameters_up_to(most: int) -> Iterator[None]:
    """What is built within has no more of them: settings that ask for a million layers are refused at the first few."""
    seen = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal seen
        seen += 1
        if seen > most:
            raise InputError("its settings ask for more weights than the file holds; restore it or train again")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def load_model(folder: Path | str) -> Trained:
    """The model in ``folder``, ready to predict. Nothing of it is unpickled, and what has changed is refused.

    Config and weights are held against each other before the model is built: it is as large as its file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that `mnagt train` wrote")
    if not (folder / CONFIG).exists() or not (folder / WEIGHTS).exists():
        raise InputError(f"{folder}: holds no trained model; train it, or go on with `mnagt train --resume {folder}`")
    check_files(folder)
    weights, note = load_tensors(folder / WEIGHTS)
    content = read_json(folder / CONFIG)
    try:
        name, settings = content["model"]["name"], content["model"]["settings"]
        features = from_dict(Features, content["features"], where="features")
        task = task_from_dict(content["task"])
        with torch.device("meta"), _parameters_up_to(SPARE_TENSORS + 2 * len(weights)):
            sketch = built(name, settings, features, task.outputs)
    except KeyError as error:
        raise InputError(f"{folder / CONFIG}: no {error} in it; it is damaged or not a model's") from None
    except (TypeError, AttributeError):
        raise InputError(f"{folder / CONFIG}: it is damaged or not a model's; restore it or train again") from None
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from None
    check_weights(sketch, weights, folder / WEIGHTS)
    check_fingerprints(folder, weights, note)
    model = built(name, settings, features, task.outputs)
    load_weights(model, weights, folder / WEIGHTS)
    if model.forest is not None:
        model.forest.task = task
    origin, vocabularies, columns = (content.get(part, {}) for part in ("origin", "vocabularies", "columns"))
    if not (isinstance(origin, dict) and _are_names(vocabularies) and _are_names(columns)):
        raise InputError(f"{folder / CONFIG}: it is damaged or not a model's; restore it or train again")
    calibration = _calibration(folder / CALIBRATION, task)
    return Trained(model.eval(), task, name, settings, origin, vocabularies, calibration, columns)


def _are_names(content: Any) -> bool:
    """Whether it holds lists of texts by name."""
    return isinstance(content, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in content.values()
    )


def _calibration(path: Path, task: Task) -> Calibration | None:
    return Calibration.from_dict(read_json(path), task, str(path)) if path.exists() else None
