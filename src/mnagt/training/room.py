"""Whether a step of training would fit into memory, told before the first one from the sizes of the graphs."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mnagt.attention import small
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.room import free_memory, in_words
from mnagt.models.graph_model import GraphModel
from mnagt.training.config import TrainConfig

_PROBES = tuple((small.LARGEST + nodes, reach) for nodes, reach in ((8, 1), (64, 1), (128, 1), (8, 8)))
"""Nodes of the graphs that a model is tried on, and neighbours of each to either side. (Of smaller graphs a CPU keeps
the attention of all pairs, few as they are: that is left out.)"""
_SMALL_GRAPH, _SMALL_BATCH = 2**12, 2**16
"""Nodes up to which nobody needs to ask."""


@dataclass(frozen=True)
class Cost:
    """Bytes that a training step keeps for its backward pass."""

    node: float
    edge: float
    pair: float
    """For each pair of nodes of a graph; zero, but for models with terms of pairs."""

    def of(self, dataset: PackedDataset) -> Float[Tensor, "graphs"]:
        """For each graph."""
        nodes, edges = dataset.sizes.double(), dataset.edge_ptr.diff().double()
        return self.node * nodes + self.edge * edges + self.pair * nodes**2


def cost_of(model: GraphModel) -> Cost:
    """What ``model`` keeps, measured on a few small graphs of its kind: linear in nodes, edges and pairs."""
    sizes, kept = [], []
    for nodes, reach in _PROBES:
        batch = _ring(nodes, reach, model.features)
        sizes.append([1.0, nodes, batch.num_edges, nodes**2])
        kept.append(float(_kept_bytes(model, batch)))
    _, node, edge, pair = torch.linalg.solve(
        torch.tensor(sizes, dtype=torch.float64), torch.tensor(kept, dtype=torch.float64)
    ).tolist()
    return Cost(max(node, 0.0), max(edge, 0.0), pair if pair > 0.5 else 0.0)


def check_room(model: GraphModel, dataset: PackedDataset, config: TrainConfig, device: torch.device) -> None:
    """Refuse graphs or batches whose training would need more memory than there is.

    The estimate is of what is kept for the backward pass, and so a lower bound: what is refused would certainly fail.
    """
    sizes, batch_size = dataset.sizes, min(config.batch_size, len(dataset))
    if int(sizes.max()) <= _SMALL_GRAPH and float(sizes.double().mean()) * batch_size <= _SMALL_BATCH:
        return
    cost, free = cost_of(model), free_memory(device)
    share = 0.5 if device.type == "cuda" else 1.0  # fused kernels keep less, bf16 half
    if config.recompute:
        share /= len(model.layers)
    need = cost.of(dataset) * share
    graph, largest, batch = int(need.argmax()), float(need.max()), float(need.mean()) * batch_size
    remedies = "train with recompute, or take a smaller model" if not config.recompute else "take a smaller model"
    if cost.pair * int(sizes[graph]) ** 2 * share > free / 2:
        remedies = "its pairs of nodes are what takes it: take a model without terms of pairs (mnagt, gps, sat)"
    if largest > free:
        raise InputError(
            f"{dataset.name}: graph {graph} has {int(sizes[graph]):,} nodes, and to train on it takes at least "
            f"{in_words(largest)} where {in_words(free)} are free on {device}; leave it out, or {remedies}"
        )
    if batch > free:
        raise InputError(
            f"{dataset.name}: batches of {batch_size} graphs take at least {in_words(batch)} on average where "
            f"{in_words(free)} are free on {device}; lower batch_size, or {remedies}"
        )


def _kept_bytes(model: GraphModel, batch: GraphBatch) -> int:
    """Bytes kept for the backward pass; what shares memory counts once.

    In evaluation, where chance has no say: dropout's own masks are not counted.
    """
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    was_training = model.training
    model.eval()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(batch)
    model.train(was_training)
    del out
    return sum(kept.values())


def _ring(nodes: int, reach: int, features: Features) -> GraphBatch:
    """A ring in which each node is joined to those up to ``reach`` steps away."""
    place = torch.arange(nodes)
    steps = [step for r in range(1, reach + 1) for step in (r, -r)]
    edge_index = torch.cat([torch.stack([place, (place + step) % nodes]) for step in steps], dim=1)
    columns = {}
    for kind, rows in (("node", nodes), ("edge", edge_index.shape[1])):
        told = features.nodes if kind == "node" else features.edges
        if told.labels:
            columns[f"{kind}_labels"] = torch.zeros(rows, len(told.labels), dtype=torch.long)
        if told.values:
            columns[f"{kind}_values"] = torch.zeros(rows, told.values)
    return GraphBatch.from_edges(edge_index, [nodes], **columns)
