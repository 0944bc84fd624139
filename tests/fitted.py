"""Models that scikit-learn fits, fitted to random graphs."""

from dataclasses import replace
from typing import Any

import torch
from strategies import generator, random_batch

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import TrainValidSplit
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.molecules import MOLECULES
from mnagt.models.registry import build_model, full_settings
from mnagt.nn.graph_model import GraphModel, resize_tables
from mnagt.tasks import MultiLabel
from mnagt.training.sklearn_problem import SklearnProblem
from mnagt.training.sklearn_trainer import FITS

SMALL: dict[str, dict[str, Any]] = {
    "wl-linear": {"wl_iterations": 2, "normalisation": "log-l2", "classifier": "logistic", "C": 1.0},
    "morgan-forest": {"num_trees": 3},
    "descriptor-boosting": {"num_iterations": 3, "min_samples_leaf": 2},
}


def graphs_like(features: Features, sizes: list[int], seed: int, density: float = 0.4) -> GraphBatch:
    """Random graphs with these columns; molecules have every kind of atom and bond."""
    has = {"node_labels": bool(features.nodes.labels), "node_values": features.nodes.values > 0}
    has |= {"edge_labels": bool(features.edges.labels), "edge_values": features.edges.values > 0}
    batch = random_batch(sizes, density, seed, **has)
    return as_molecules(batch) if features == MOLECULES else batch


def as_molecules(batch: GraphBatch) -> GraphBatch:
    """The graphs with columns of atoms and of bonds in place of others, alike both ways along a bond."""
    assert batch.node_labels is not None
    assert batch.edge_labels is not None
    return replace(
        batch,
        node_labels=_stretch(batch.node_labels, MOLECULES.nodes),
        edge_labels=_stretch(batch.edge_labels, MOLECULES.edges),
    )


def _stretch(labels: torch.Tensor, columns: Columns) -> torch.Tensor:
    mixed = torch.stack([labels[:, 0] * (i + 3) + labels[:, 1] for i in range(len(columns.labels))], dim=1)
    return mixed % torch.tensor(columns.labels)


def fit_at_random(
    name: str, settings: dict[str, Any], features: Features, outputs: int, seed: int = 0
) -> tuple[GraphModel, dict[str, Any]]:
    """The model fitted to random labels of forty graphs, and its settings as they were chosen."""
    settings = full_settings(name, SMALL[name] | settings)
    sizes = torch.randint(1, 9, (40,), generator=generator(seed)).tolist()
    batch = graphs_like(features, sizes, seed)
    targets = torch.randint(0, 2, (40, outputs), generator=generator(seed + 1)).float()
    targets[:2] = torch.tensor([[0.0], [1.0]])
    targets[3, 0] = torch.nan
    targets[30:32] = torch.tensor([[0.0], [1.0]])
    task = MultiLabel(tuple(f"label {i}" for i in range(outputs)))
    dataset = PackedDataset.from_batch("toys", task, replace(batch, targets=targets), label_counts=_counts(features))
    model = build_model(name, settings, features, outputs)
    parts = TrainValidSplit(torch.arange(30), torch.arange(30, 40), torch.arange(0))
    problem = SklearnProblem(model, settings, with_encodings(dataset, model.encodings), parts, task, seed)
    chosen, tensors = FITS[name](problem)
    model = build_model(name, chosen, features, outputs)
    resize_tables(model, tensors)
    model.load_state_dict(tensors)
    return model, chosen


def _counts(features: Features) -> dict[str, tuple[int, ...]]:
    kinds = {"node_labels": features.nodes.labels, "edge_labels": features.edges.labels}
    return {kind: labels for kind, labels in kinds.items() if labels}
