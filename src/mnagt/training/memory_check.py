"""Whether a training step would fit into memory, estimated from the sizes of the graphs before the first step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mnagt.attention import cpu_small
from mnagt.data.packed import PackedDataset
from mnagt.devices import device_name
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.graphs.memory import format_bytes, free_memory
from mnagt.nn.graph_model import GraphModel
from mnagt.runs.config import RunConfig, TrainConfig

_PROBES = tuple((cpu_small.LARGEST + nodes, reach) for nodes, reach in ((8, 1), (64, 1), (128, 1), (8, 8)))
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
    if config.activation_checkpointing:
        share /= len(model.layers)
    need = cost.of(dataset) * share
    graph, largest, batch = int(need.argmax()), float(need.max()), float(need.mean()) * batch_size
    remedies = "take a smaller model"
    if not config.activation_checkpointing:
        remedies = f"train with activation_checkpointing, or {remedies}"
    if cost.pair * int(sizes[graph]) ** 2 * share > free / 2:
        remedies = "its pairs of nodes are what takes it: take a model without terms of pairs (mnagt, gps, sat)"
    if largest > free:
        raise InputError(
            f"{dataset.name}: graph {graph} has {int(sizes[graph]):,} nodes, and to train on it takes at least "
            f"{format_bytes(largest)} where {format_bytes(free)} are free on {device}; leave it out, or {remedies}"
        )
    if batch > free:
        raise InputError(
            f"{dataset.name}: batches of {batch_size} graphs take at least {format_bytes(batch)} on average where "
            f"{format_bytes(free)} are free on {device}; lower batch_size, or {remedies}"
        )


@contextmanager
def explain_out_of_memory(device: torch.device, config: RunConfig) -> Iterator[None]:
    """Within the block, a GPU that runs out of memory raises an error of one line."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{device_name(device)} has too little memory for batches of {config.train.batch_size} graphs; "
            "lower batch_size or choose a smaller model"
        ) from error


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
    node = torch.arange(nodes)
    steps = [step for r in range(1, reach + 1) for step in (r, -r)]
    edge_index = torch.cat([torch.stack([node, (node + step) % nodes]) for step in steps], dim=1)
    columns = {}
    for kind, rows in (("node", nodes), ("edge", edge_index.shape[1])):
        read = features.nodes if kind == "node" else features.edges
        if read.labels:
            columns[f"{kind}_labels"] = torch.zeros(rows, len(read.labels), dtype=torch.long)
        if read.values:
            columns[f"{kind}_values"] = torch.zeros(rows, read.values)
    return GraphBatch.from_edges(edge_index, [nodes], **columns)
