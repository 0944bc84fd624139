"""Whether a training step would fit into memory, estimated from the sizes of the graphs before the first step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mnagt.attention import cpu_small
from mnagt.data.packed import PackedDataset
from mnagt.devices import device_name
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.memory import format_bytes, free_memory
from mnagt.graphs.random_graphs import random_graphs
from mnagt.nn.graph_model import GraphModel
from mnagt.runs.config import RunConfig, TrainConfig

_PROBES = ((8, 0.02), (64, 0.02), (128, 0.02), (8, 0.2))
"""Graphs that a model is measured on: nodes beyond ``cpu_small.LARGEST``, up to which a CPU keeps the attention of all
pairs, and density."""
_SMALL_GRAPH, _SMALL_BATCH = 2**12, 2**16
"""Nodes up to which nothing is measured."""


class Cost(NamedTuple):
    """Bytes that a training step keeps for its backward pass, by node, edge and pair of nodes of a graph."""

    node: float
    edge: float
    pair: float

    def of(self, dataset: PackedDataset) -> Float[Tensor, "graphs"]:
        nodes, edges = dataset.sizes.double(), dataset.edge_ptr.diff().double()
        return self.node * nodes + self.edge * edges + self.pair * nodes**2


def measure_cost(model: GraphModel) -> Cost:
    """What ``model`` keeps, measured on a few small graphs of its kind: linear in nodes, edges and pairs."""
    batches = [random_graphs(model.features, [cpu_small.LARGEST + nodes], density) for nodes, density in _PROBES]
    counts = [[1, batch.num_nodes, batch.num_edges, batch.num_nodes**2] for batch in batches]
    num_bytes = torch.tensor([_kept_bytes(model, batch) for batch in batches], dtype=torch.float64)
    _, node, edge, pair = torch.linalg.solve(torch.tensor(counts, dtype=torch.float64), num_bytes).tolist()
    return Cost(max(node, 0.0), max(edge, 0.0), pair if pair > 0.5 else 0.0)


def check_memory(model: GraphModel, dataset: PackedDataset, config: TrainConfig, device: torch.device) -> None:
    """Refuse graphs or batches whose training would need more memory than there is.

    The estimate is of what is kept for the backward pass, and so a lower bound: what is refused would certainly fail.
    """
    sizes, batch_size = dataset.sizes, min(config.batch_size, len(dataset))
    if int(sizes.max()) <= _SMALL_GRAPH and float(sizes.double().mean()) * batch_size <= _SMALL_BATCH:
        return
    cost, free = measure_cost(model), free_memory(device)
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
    """Within the block, a device that runs out of memory raises an error of one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # a GPU's error is a RuntimeError, too
        is_out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_out_of_memory and "can't allocate memory" not in str(error):
            raise
        raise InputError(
            f"{device_name(device)} has too little memory for batches of {config.train.batch_size} graphs; "
            "lower batch_size or choose a smaller model"
        ) from error


def _kept_bytes(model: GraphModel, batch: GraphBatch) -> int:
    """Bytes kept for the backward pass, without dropout's masks; what shares memory counts once."""
    bytes_of: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        bytes_of[storage.data_ptr()] = storage.nbytes()
        return tensor

    was_training = model.training
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        _ = model.eval()(batch)  # what it keeps lives as long as the output
    model.train(was_training)
    return sum(bytes_of.values())
