"""Mean kernel weights by type of node and by class of graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import category_meanings
from mnagt.graphs.molecules import find_molecule_format
from mnagt.inference.model_folder import Graphs, TrainedModel


@dataclass(frozen=True, eq=False)
class NodeGroup:
    """Nodes of one type, or of the graphs of one class."""

    name: str
    nodes: int
    """How many there are."""
    weights: Float[Tensor, "layers kernels"]
    """Mean over the nodes."""


@dataclass(frozen=True, eq=False)
class KernelStatistics:
    """Mean kernel weights over some graphs."""

    graphs: int
    by_type: list[NodeGroup]
    """By the first categorical column of nodes or else by degree; most common first."""
    by_class: list[NodeGroup]
    """By the class of the graph; empty unless the task is single-label."""
    is_by_target: bool
    """Whether ``by_class`` goes by the targets; otherwise it goes by the predicted classes."""


def compute_kernel_statistics(
    trained: TrainedModel,
    graphs: Graphs,
    indices: Int[Tensor, "selected"] | None = None,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> KernelStatistics | None:
    """Average the kernel weights over the selected graphs, by default all; None for models without such weights."""
    original = trained.to_dataset(graphs)
    dataset, indices = trained.read(original, indices, device)
    model = trained.model.eval()
    has_targets = bool(original.task.class_names)
    class_names = (category_meanings(original, "classes") if has_targets else ()) or trained.task.class_names
    by_type, by_class = _Means(), _Means()
    for selected in indices.split(batch_size):
        batch = dataset.batch(selected)
        with torch.inference_mode():
            layers = model.kernel_weights(batch)
            if not layers:
                return None
            classes = dataset.targets[selected.to(dataset.device)] if has_targets else model(batch).argmax(dim=1)
        rows = torch.arange(batch.num_nodes, device=batch.device)
        if len(layers[0]) > batch.num_nodes:  # the readout adds a node at the end of each graph
            rows = rows + batch.graph_of_node
        weights = torch.stack(layers, dim=1)[rows].double()
        by_type.add(weights, batch.in_degree if batch.node_labels is None else batch.node_labels[:, 0])
        if class_names:
            by_class.add(weights, classes[batch.graph_of_node])
    types = sorted(by_type.groups(lambda label: node_type(trained, original, label)), key=lambda group: -group.nodes)
    return KernelStatistics(len(indices), types, by_class.groups(lambda c: class_names[c]), has_targets)


class _Means:
    """Running means of kernel weights, by a label of the nodes."""

    def __init__(self) -> None:
        self.sums: dict[int, tuple[int, Tensor]] = {}

    def add(self, weights: Float[Tensor, "nodes layers kernels"], labels: Int[Tensor, "nodes"]) -> None:
        for label in labels.unique().tolist():
            selected = weights[labels == label]
            count, total = self.sums.get(label, (0, torch.zeros(selected.shape[1:], dtype=selected.dtype)))
            self.sums[label] = count + len(selected), total + selected.sum(dim=0).cpu()

    def groups(self, name: Callable[[int], str]) -> list[NodeGroup]:
        return [NodeGroup(name(label), count, total / count) for label, (count, total) in sorted(self.sums.items())]


def node_type(trained: TrainedModel, dataset: PackedDataset, label: int) -> str:
    """The name of a category of the first column of nodes; without columns, ``label`` is a degree."""
    if not trained.model.features.nodes.labels:
        return f"degree {label}"
    if find_molecule_format(trained.model.features):
        return element_symbol(label + 1)
    names: Sequence[str] = trained.vocabularies.get("node_labels/0", ())
    name = names[label] if 0 <= label < len(names) else "none" if label < 0 else str(label)
    originals = dataset.vocabularies.get("node_labels/0", ())
    return dict(zip(originals, category_meanings(dataset, "node_labels/0"), strict=True)).get(name, name)


def element_symbol(number: int) -> str:
    """The chemical symbol of an atomic number, * if there is none; the number itself without RDKit."""
    try:
        from rdkit.Chem import GetPeriodicTable
    except ImportError:
        return str(number)
    return GetPeriodicTable().GetElementSymbol(number) if 1 <= number <= 118 else "*"
