"""Distributed training by processes that ``torchrun`` started, on one machine or more.

Every batch is that of a single process, partitioned among the ranks. So the outcome is that of a single process, but
for rounding and for the random numbers of dropout.
"""

import hashlib
import heapq
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch, Padding
from mnagt.inference.outputs import Reduce, compute_outputs, join_outputs
from mnagt.nn.norms import synchronise_batch_norms

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for every process that it starts."""
TIMEOUT = timedelta(minutes=30)
"""A rank that does not respond for so long is lost. One that dies is noticed at once."""
NODE_PAIRS = 500
"""Pairs of nodes that cost as much as a node: measured on a CPU, forward and backward, with the default model."""

T = TypeVar("T")


def estimate_cost(sizes: Int[Tensor, "graphs"]) -> Float[Tensor, "graphs"]:
    """Time to train on graphs with these numbers of nodes, in units of a node: for nodes, and for pairs of nodes."""
    return sizes + sizes.double().square() / NODE_PAIRS


def partition(costs: Float[Tensor, "graphs"], world_size: int) -> list[Int[Tensor, "shard"]]:
    """Positions of the graphs for each rank, ascending: the most costly first, to the rank with the least load."""
    shards: list[list[int]] = [[] for _ in range(world_size)]
    load = [(0.0, rank) for rank in range(world_size)]
    for graph in costs.argsort(descending=True, stable=True).tolist():
        total, rank = load[0]
        shards[rank].append(graph)
        heapq.heapreplace(load, (total + float(costs[graph]), rank))
    return [torch.tensor(sorted(shard), dtype=torch.long) for shard in shards]


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, and which of them this is. Alone, no method communicates."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    def shards(self, dataset: PackedDataset, graphs: Int[Tensor, "some"]) -> list[Int[Tensor, "shard"]]:
        """The graphs that each rank works on, in the order of ``graphs``."""
        if not self.is_distributed:
            return [graphs]
        return [graphs[shard] for shard in partition(estimate_cost(dataset.sizes[graphs]), self.world_size)]

    def batch(self, dataset: PackedDataset, graphs: Int[Tensor, "batch"]) -> GraphBatch:
        """This rank's part of the batch of ``graphs``; where it has no graphs, one that is all padding."""
        shard = self.shards(dataset, graphs)[self.rank]
        if len(shard):
            return dataset.batch(shard)
        batch = dataset.batch(graphs[:1])
        none = torch.zeros((), dtype=torch.long, device=batch.device)
        return replace(batch, targets=batch.targets[:0], padding=Padding(none, none, none, batch.max_num_nodes))  # type: ignore[index]

    def sum(self, tensor: Shaped[Tensor, "*any"]) -> Shaped[Tensor, "*any"]:
        """The sum over all ranks."""
        if not self.is_distributed:
            return tensor
        total = tensor.clone()
        torch.distributed.all_reduce(total)
        return total

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is true on some rank."""
        if not self.is_distributed:
            return list(flags)
        return [count > 0 for count in self.sum(torch.tensor(flags, dtype=torch.int32)).tolist()]

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which may have different shapes."""
        if not self.is_distributed:
            return [tensor]
        parts: list[Tensor] = [tensor] * self.world_size
        torch.distributed.all_gather_object(parts, tensor.cpu())
        return [part.to(tensor.device) for part in parts]

    def outputs(
        self,
        model: nn.Module,
        dataset: PackedDataset,
        indices: Int[Tensor, "some"],
        batch_size: int,
        reduce: Reduce = lambda output: output,
    ) -> Float[Tensor, "some outputs"]:
        """As ``compute_outputs``, on every rank; each rank computes those of a part of the graphs."""
        if not self.is_distributed or len(indices) == 0:
            return compute_outputs(model, dataset, indices, batch_size, reduce)
        graphs, position = indices.cpu().unique(return_inverse=True)
        shards = self.shards(dataset, graphs)
        shard = shards[self.rank]
        computed = compute_outputs(model, dataset, shard if len(shard) else graphs[:1], batch_size, reduce)
        gathered = join_outputs(self.gather(computed[: len(shard)]))
        return gathered[torch.cat(shards).argsort()[position].to(gathered.device)]

    def broadcast_from_rank0(self, make: Callable[[], T]) -> T:
        """The result of ``make()`` on rank 0, on all ranks; an ``InputError`` there is raised on all ranks."""
        if not self.is_distributed:
            return make()
        message: list = [None, None]
        if self.is_first:
            try:
                message[0] = make()
            except InputError as error:
                message[1] = str(error)
        torch.distributed.broadcast_object_list(message)
        if message[1] is not None:
            raise InputError(message[1])
        return message[0]

    def seed(self, seed: int, step: int) -> int:
        """The seed of this rank's generators from step ``step`` on; that of the run, if it begins with one rank."""
        if not self.is_distributed and step == 0:
            return seed
        digest = hashlib.blake2b(f"{seed} {step} {self.rank}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def random_states(self, device: torch.device) -> dict[str, Tensor]:
        """The state of the generators that dropout draws from, a row for each rank."""
        states = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
        return {name: torch.stack(self.gather(state)) for name, state in states.items()}

    def set_random_states(self, states: Mapping[str, Tensor], device: torch.device) -> bool:
        """Set the generators; whether that could be done: there must be as many ranks as when the states were saved."""
        rows = {name: torch.atleast_2d(state) for name, state in states.items()}  # of one process, in early versions
        if len(rows["cpu"]) != self.world_size:
            return False
        torch.set_rng_state(rows["cpu"][self.rank].clone())  # torch reads a view from its beginning
        if device.type == "cuda" and "cuda" in rows:
            torch.cuda.set_rng_state(rows["cuda"][self.rank].clone(), device)
        return True

    def local_device(self, device: torch.device) -> torch.device:
        """The device of this rank: each has a GPU of its own."""
        if not self.is_distributed or device.type != "cuda":
            return device
        local, gpus = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if device.index is not None or local >= gpus:
            raise InputError(
                f"rank {self.rank} needs a GPU of its own, and has {device} of {gpus} here; start at most one process "
                "a GPU and give --device cuda, or cpu"
            )
        torch.cuda.set_device(local)
        return torch.device("cuda", local)

    @contextmanager
    def wrap_model(self, model: nn.Module) -> Iterator[nn.Module]:
        """``model`` as the ranks train it together: gradients are means over ranks, statistics are over all rows."""
        if not self.is_distributed:
            yield model
            return
        with synchronise_batch_norms(model, torch.distributed.group.WORLD):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
                wrapped = nn.parallel.DistributedDataParallel(
                    _WithUnused(model, next(model.parameters())),
                    process_group=torch.distributed.new_group(timeout=TIMEOUT),  # not that of the statistics
                    broadcast_buffers=False,
                    find_unused_parameters=True,  # so buckets never change, and a resumed run adds in the same order
                )
            yield wrapped


class _WithUnused(nn.Module):
    """A model with a parameter that nothing uses: torch warns if it looks for unused parameters and finds none."""

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        super().__init__()
        self.model, self.unused = model, nn.Parameter(like.new_zeros(1))

    def forward(self, graph: GraphBatch) -> Tensor:
        return self.model(graph)


ALONE = Ranks()


def is_first() -> bool:
    """Whether this process is rank 0, or was not started by torchrun."""
    return os.environ.get("RANK", "0") == "0" or not os.environ.keys() >= set(TORCHRUN_VARIABLES)


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the process group that torchrun started; without torchrun, this process alone."""
    if not os.environ.keys() >= set(TORCHRUN_VARIABLES) or os.environ["WORLD_SIZE"] == "1":
        yield ALONE
        return
    dist = torch.distributed
    is_ours = not dist.is_initialized()
    if is_ours:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    try:
        yield ranks
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if not any(word in reason for word in ("gloo", "Gloo", "NCCL", "onnection", "imed out")):
            raise
        raise InputError(
            f"rank {ranks.rank} of {ranks.world_size} has lost another ({reason[:200]}); see its messages, then go on "
            "with --resume, with as many ranks as you like"
        ) from error
    finally:
        if is_ours:
            dist.destroy_process_group()
