"""Training over several processes, on one machine or more: who takes part, and what each of them does.

``torchrun`` starts the processes and tells each of them in its environment who the others are. Every batch is that of a
single process, dealt out; gradients are added up by torch's ``DistributedDataParallel``, and ``BatchNorm`` takes its
statistics over all ranks. So the outcome is that of a single process, but for rounding and for what dropout draws.
"""

import hashlib
import heapq
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import Filled, GraphBatch
from mnagt.models.norms import BatchNorm

TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun says in the environment of every process that it starts."""
TIMEOUT = timedelta(minutes=30)
"""A rank that does not answer for so long is lost. One that dies is missed at once."""
NODE_PAIRS = 500
"""Pairs of nodes that cost as much as a node: measured on a CPU, forward and backward, with the default model."""

T = TypeVar("T")


def cost(sizes: Int[Tensor, "graphs"]) -> Float[Tensor, "graphs"]:
    """What graphs of these many nodes take to train on, in nodes: work for each node, and for each pair of them."""
    return sizes + sizes.double().square() / NODE_PAIRS


def dealt(costs: Float[Tensor, "graphs"], ranks: int) -> list[Int[Tensor, "some"]]:
    """The places of the graphs that each rank gets, in order: the dearest first, to who has least to do so far."""
    hands: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0.0, rank) for rank in range(ranks)]
    told = costs.tolist()
    for place in costs.argsort(descending=True, stable=True).tolist():
        so_far, rank = load[0]
        hands[rank].append(place)
        heapq.heapreplace(load, (so_far + told[place], rank))
    return [torch.tensor(sorted(hand), dtype=torch.long) for hand in hands]


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, and which of them this is. With one, nothing here costs anything."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """The first writes files, and speaks."""
        return self.rank == 0

    @property
    def are_many(self) -> bool:
        return self.count > 1

    def hands(self, dataset: PackedDataset, graphs: Int[Tensor, "some"]) -> list[Int[Tensor, "own"]]:
        """Those of ``graphs`` that each rank is to work on, in the same order."""
        if not self.are_many:
            return [graphs]
        return [graphs[hand] for hand in dealt(cost(dataset.sizes[graphs]), self.count)]

    def batch(self, dataset: PackedDataset, graphs: Int[Tensor, "batch"]) -> GraphBatch:
        """This rank's part of the batch of ``graphs``. One without graphs gets a graph of which nothing counts."""
        own = self.hands(dataset, graphs)[self.rank]
        if len(own):
            return dataset.batch(own)
        batch = dataset.batch(graphs[:1])
        none = torch.zeros((), dtype=torch.long, device=batch.device)
        return replace(batch, targets=batch.targets[:0], filled=Filled(none, none, none, batch.largest))  # type: ignore[index]

    def total(self, own: Shaped[Tensor, "*any"]) -> Shaped[Tensor, "*any"]:
        """The sum over all ranks."""
        if not self.are_many:
            return own
        whole = own.clone()
        torch.distributed.all_reduce(whole)
        return whole

    def any(self, *own: bool) -> list[bool]:
        """Of each question, whether some rank says yes."""
        if not self.are_many:
            return list(own)
        return [count > 0 for count in self.total(torch.tensor(own, dtype=torch.int32)).tolist()]

    def stacked(self, own: Shaped[Tensor, "*any"]) -> Shaped[Tensor, "ranks *any"]:
        """What each rank has; of the same shape everywhere."""
        if not self.are_many:
            return own[None]
        parts = [torch.empty_like(own) for _ in range(self.count)]
        torch.distributed.all_gather(parts, own.contiguous())
        return torch.stack(parts)

    def gathered(self, own: Shaped[Tensor, "own *any"], counts: list[int]) -> Shaped[Tensor, "all *any"]:
        """The rows of all ranks, of which each has as many as ``counts`` says."""
        if not self.are_many:
            return own
        padded = own.new_zeros(max(counts), *own.shape[1:])
        padded[: len(own)] = own
        return torch.cat([part[:count] for part, count in zip(self.stacked(padded), counts, strict=True)])

    def told(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on all of them; what it finds wrong is wrong everywhere."""
        if not self.are_many:
            return make()
        said: list = [None, None]
        if self.is_first:
            try:
                said[0] = make()
            except InputError as error:
                said[1] = str(error)
        torch.distributed.broadcast_object_list(said)
        if said[1] is not None:
            raise InputError(said[1])
        return said[0]

    def seed(self, seed: int, step: int) -> int:
        """The seed of this rank's generators from step ``step`` on; that of the run, if it begins with one rank."""
        if not self.are_many and step == 0:
            return seed
        digest = hashlib.blake2b(f"{seed} {step} {self.rank}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def place(self, device: torch.device) -> torch.device:
        """Where this rank computes: each has a GPU of its own."""
        if not self.are_many or device.type != "cuda":
            return device
        local, here = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if device.index is not None or local >= here:
            raise InputError(
                f"rank {self.rank} needs a GPU of its own, and has {device} of {here} here; start at most one process "
                "a GPU and give --device cuda, or cpu"
            )
        torch.cuda.set_device(local)
        return torch.device("cuda", local)

    @contextmanager
    def over(self, model: nn.Module) -> Iterator[nn.Module]:
        """``model`` as the ranks train it together: gradients are means over ranks, statistics are over all rows."""
        if not self.are_many:
            yield model
            return
        norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        for norm in norms:
            norm.is_over_ranks = True
        try:
            yield _parallel(model)
        finally:
            for norm in norms:
                norm.is_over_ranks = False


def _parallel(model: nn.Module) -> nn.Module:
    """``model``, whose gradients are averaged while they are worked out.

    They have a group of their own: when they travel has nothing to do with when the norms talk. A parameter that no
    graph of a rank asks for is looked for; buckets then stay as they are, so that a resumed run adds up alike.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)  # its heir is too young
        return nn.parallel.DistributedDataParallel(
            _WithUnused(model, next(model.parameters())),
            process_group=torch.distributed.new_group(timeout=TIMEOUT),
            broadcast_buffers=False,
            find_unused_parameters=True,
        )


class _WithUnused(nn.Module):
    """A model, and a parameter that nothing uses: torch warns on every run in which it looks for one in vain."""

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        super().__init__()
        self.model, self.unused = model, nn.Parameter(like.new_zeros(1))

    def forward(self, graph: GraphBatch) -> Tensor:
        return self.model(graph)


ALONE = Ranks()


def is_first() -> bool:
    """Whether this process is the first of those that torchrun started, or was started by itself."""
    return os.environ.get("RANK", "0") == "0" or not os.environ.keys() >= set(TOLD)


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun started, in touch with each other; this process alone where it did not."""
    if not os.environ.keys() >= set(TOLD) or os.environ["WORLD_SIZE"] == "1":
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
            f"rank {ranks.rank} of {ranks.count} has lost another ({reason[:200]}); see what that one said, and go on "
            "with --resume, with as many ranks as you like"
        ) from error
    finally:
        if is_ours:
            dist.destroy_process_group()
