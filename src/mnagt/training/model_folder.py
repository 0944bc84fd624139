"""A trained model in a folder that stands alone: ``config.json`` and ``model.safetensors`` rebuild it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import read_json, write_json
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.models import build_model
from mnagt.models.graph_model import GraphModel
from mnagt.settings import from_dict
from mnagt.tasks import Task, Unasked, task_from_dict, task_to_dict
from mnagt.training.checkpoint import load_tensors, load_weights, save_tensors
from mnagt.training.fit import outputs
from mnagt.version import __version__

Graphs = PackedDataset | GraphBatch
CONFIG, WEIGHTS = "config.json", "model.safetensors"


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

    def outputs(
        self, graphs: Graphs, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> Float[Tensor, "some outputs"]:
        """What the model says of these graphs (all, if none are named), in that order."""
        dataset = self.aligned(_as_dataset(graphs))
        indices = torch.arange(len(dataset)) if indices is None else indices
        return outputs(self.model.to(device), dataset.to(device), indices).cpu()

    def predict(
        self, graphs: Graphs, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> dict[str, list]:
        """Answers as columns of a table, one row a graph. The graphs may come as a batch (``from_pyg``, ...)."""
        return self.task.decode(self.outputs(graphs, indices, device))

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

    def aligned(self, dataset: PackedDataset) -> PackedDataset:
        """The graphs with categories numbered as in training: another file may lack some, and then counts otherwise."""
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
                for name in there:
                    if name not in known:
                        raise InputError(
                            f"{dataset.name}: column {column} of {kind} holds {name}, which the model has not met; "
                            f"it was trained on {self.origin.get('dataset', 'other graphs')}"
                        )
                place = torch.tensor([*(known.index(name) for name in there), -1])  # -1, 'none', stays -1
                changed.setdefault(kind, labels.clone())[:, column] = place.to(labels)[labels[:, column].long()]
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
            },
        )
        save_tensors(folder / WEIGHTS, self.model.state_dict())


def _as_dataset(graphs: Graphs) -> PackedDataset:
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


def load_model(folder: Path | str) -> Trained:
    """The model in ``folder``, ready to predict."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that `mnagt train` wrote")
    if not (folder / CONFIG).exists() or not (folder / WEIGHTS).exists():
        raise InputError(f"{folder}: holds no trained model; train it, or go on with `mnagt train --resume {folder}`")
    content = read_json(folder / CONFIG)
    try:
        name, settings = content["model"]["name"], content["model"]["settings"]
        features = from_dict(Features, content["features"], where="features")
        task = task_from_dict(content["task"])
        model = built(name, settings, features, task.outputs)
    except KeyError as error:
        raise InputError(f"{folder / CONFIG}: no {error} in it; it is damaged or not a model's") from None
    except (TypeError, AttributeError):
        raise InputError(f"{folder / CONFIG}: it is damaged or not a model's; restore it or train again") from None
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from None
    weights, _ = load_tensors(folder / WEIGHTS)
    load_weights(model, weights, folder / WEIGHTS)
    return Trained(model.eval(), task, name, settings, content.get("origin", {}), content.get("vocabularies", {}))
