"""How the weights of kernels spread over kinds of nodes and classes of graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data import meanings
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import FEATURES
from mnagt.tasks import SingleLabel
from mnagt.training.model_folder import Graphs, Trained, as_dataset


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that have something in common."""

    name: str
    nodes: int
    weights: Float[Tensor, "layers kernels"]
    """Means over its nodes."""


@dataclass(frozen=True, eq=False)
class Spread:
    graphs: int
    by_type: list[Group]
    """Most common first."""
    by_class: list[Group]
    """By what is true of the graphs, or else by what the model says; none for numbers, questions and names."""
    is_true: bool


def kernel_spread(
    trained: Trained,
    graphs: Graphs,
    indices: Int[Tensor, "some"] | None = None,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> Spread | None:
    """The mean weights over these graphs (all, if none are named); None where the model does not weigh kernels."""
    own = as_dataset(graphs)
    dataset = trained.aligned(own).to(device)
    indices = torch.arange(len(dataset)) if indices is None else indices
    model, task = trained.model.to(device).eval(), trained.task
    is_true = isinstance(own.task, SingleLabel)
    by_type, by_class = _Means(), _Means()
    for some in indices.split(batch_size):
        batch = dataset.batch(some)
        with torch.inference_mode():
            layers = model.kernel_weights(batch)
            said = dataset.targets[some.to(dataset.device)] if is_true else model(batch).argmax(dim=1)
        if not layers:
            return None
        rows = torch.arange(batch.num_nodes, device=batch.device)
        if len(layers[0]) > batch.num_nodes:  # the readout's own node ends each graph
            rows = rows + batch.graph_of_node
        weights = torch.stack(layers, dim=1)[rows].double()
        by_type.add(weights, batch.in_degree if batch.node_labels is None else batch.node_labels[:, 0])
        by_class.add(weights, said[batch.graph_of_node])
    types = by_type.groups(lambda kind: node_type(trained, own, kind))
    names = (meanings(own, "classes") if is_true else ()) or (task.classes if isinstance(task, SingleLabel) else ())
    classes = by_class.groups(lambda kind: names[kind]) if names else []
    return Spread(len(indices), sorted(types, key=lambda group: -group.nodes), classes, is_true)


class _Means:
    """Mean weights of each kind of node, batch by batch."""

    def __init__(self) -> None:
        self.sums: dict[int, tuple[int, Tensor]] = {}

    def add(self, weights: Float[Tensor, "nodes layers kernels"], kinds: Int[Tensor, "nodes"]) -> None:
        for kind in kinds.unique().tolist():
            own = weights[kinds == kind]
            count, total = self.sums.get(kind, (0, torch.zeros(own.shape[1:], dtype=own.dtype)))
            self.sums[kind] = count + len(own), total + own.sum(dim=0).cpu()

    def groups(self, name: Callable[[int], str]) -> list[Group]:
        return [Group(name(kind), count, total / count) for kind, (count, total) in sorted(self.sums.items())]


def node_type(trained: Trained, dataset: PackedDataset, label: int) -> str:
    """What the first column of nodes says, in words as far as they are known; without columns, the degree."""
    if not trained.model.features.nodes.labels:
        return f"degree {label}"
    if trained.model.features == FEATURES:
        return element_symbol(label + 1)
    names: Sequence[str] = trained.vocabularies.get("node_labels/0", ())
    known = dict(zip(dataset.vocabularies.get("node_labels/0", ()), meanings(dataset, "node_labels/0"), strict=True))
    word = names[label] if 0 <= label < len(names) else "none" if label < 0 else str(label)
    return known.get(word, word)


def element_symbol(number: int) -> str:
    """As in the periodic table; * for what is not in it. Without RDKit, the number."""
    try:
        from rdkit.Chem import GetPeriodicTable
    except ImportError:
        return str(number)
    return GetPeriodicTable().GetElementSymbol(number) if 1 <= number <= 118 else "*"
