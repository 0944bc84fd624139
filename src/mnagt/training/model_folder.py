"""A trained model in a folder that stands alone: ``config.json`` and ``model.safetensors`` rebuild it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import read_json, write_json
from mnagt.graphs.features import Features
from mnagt.models import build_model
from mnagt.models.graph_model import GraphModel
from mnagt.settings import from_dict
from mnagt.tasks import Task, task_from_dict, task_to_dict
from mnagt.training.checkpoint import load_tensors, load_weights, save_tensors
from mnagt.training.fit import outputs
from mnagt.version import __version__

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, eq=False)
class Trained:
    """A model with all that it takes to use it."""

    model: GraphModel
    task: Task
    name: str
    """Its name in ``MODELS``."""
    settings: Mapping[str, Any]
    """Settings that differ from the model's defaults."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: data set, run settings."""

    def outputs(
        self, dataset: PackedDataset, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> Float[Tensor, "some outputs"]:
        """What the model says of these graphs (all, if none are named), in that order."""
        self.check(dataset)
        indices = torch.arange(len(dataset)) if indices is None else indices
        return outputs(self.model.to(device), dataset.to(device), indices).cpu()

    def predict(
        self, dataset: PackedDataset, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> dict[str, list]:
        """Answers as columns of a table, one row a graph."""
        return self.task.decode(self.outputs(dataset, indices, device))

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
                if there > known:
                    raise InputError(
                        f"{dataset.name}: column {column} of {kind} has {there} categories, the model knows {known}; "
                        f"it was trained on {self.origin.get('dataset', 'other graphs')}"
                    )

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
            },
        )
        save_tensors(folder / WEIGHTS, self.model.state_dict())


def load_model(folder: Path | str) -> Trained:
    """The model in ``folder``, ready to predict."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that `mnagt train` wrote")
    content = read_json(folder / CONFIG)
    try:
        name, settings = content["model"]["name"], content["model"]["settings"]
        features = from_dict(Features, content["features"], where=f"{folder / CONFIG}: features")
        task = task_from_dict(content["task"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / CONFIG}: no {error} in it; it is damaged or not a model's") from None
    model = build_model(name, settings, features, task.outputs)
    if not (folder / WEIGHTS).exists():
        raise InputError(f"{folder}: holds no trained model; train it, or go on with `mnagt train --resume {folder}`")
    weights, _ = load_tensors(folder / WEIGHTS)
    load_weights(model, weights, folder / WEIGHTS)
    return Trained(model.eval(), task, name, settings, content.get("origin", {}))
