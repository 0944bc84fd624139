"""Training steps and evaluations on a GPU, captured as CUDA graphs and replayed: one launch for a thousand kernels."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.data.padded_batches import NO_GRAPH, PaddedBatches, Shape
from mnagt.graphs.batch import GraphBatch
from mnagt.inference.outputs import Reduce

HEADROOM = (0.5, 1.5, 3.5)
"""Shapes are made for batches that are larger than average by so many standard deviations."""
WORTH_IT = 0.85
"""A shape is made beside the next larger one if it has at most this share of its nodes or edges."""


@dataclass(eq=False)
class CapturedSteps:
    """``update``, which trains on a batch and returns the loss, replayed on batches of ``dataset``.

    ``state`` gives the tensors that ``update`` changes: before the capture a warm-up step is run and undone.
    """

    update: Callable[[GraphBatch], Float[Tensor, ""]]
    dataset: PackedDataset
    batch_size: int
    state: Callable[[], Iterable[Tensor]]
    _captured: dict[Shape, torch.cuda.CUDAGraph] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device = self.dataset.device
        self._batches = PaddedBatches(self.dataset)
        self._graphs = torch.full((self.batch_size,), NO_GRAPH, device=device)
        self._loss = torch.zeros((), device=device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, graphs: Int[Tensor, "some"]) -> Float[Tensor, ""]:
        """The loss of a step on these graphs; the next call overwrites it."""
        self._graphs.copy_(F.pad(graphs, (0, self.batch_size - len(graphs)), value=NO_GRAPH), non_blocking=True)
        shape = self._choose_shape(self._batches.shape_of(graphs))
        if shape not in self._captured:
            self._captured[shape] = self._capture(shape)
        self._captured[shape].replay()
        return self._loss

    def _choose_shape(self, needed: Shape) -> Shape:
        """The smallest of the usual shapes that holds ``needed``; if there is none, a new one."""
        shapes = {*self._ladder, *self._captured}
        return min((shape for shape in shapes if shape.holds(needed)), default=needed.round_up())

    @cached_property
    def _ladder(self) -> list[Shape]:
        """The shapes that hold most batches: one if their sizes are alike, several if they are not."""
        size, root = self.batch_size, self.batch_size**0.5
        counts = [ptr.diff().double() for ptr in (self.dataset.node_ptr, self.dataset.edge_ptr)]
        ladder: list[Shape] = []
        for above in reversed(HEADROOM):
            nodes, edges = (int(size * c.mean() + above * root * c.std(correction=0)) for c in counts)
            shape = Shape(size, nodes, edges).round_up()
            if not ladder or min(shape.nodes / ladder[-1].nodes, shape.edges / max(ladder[-1].edges, 1)) <= WORTH_IT:
                ladder.append(shape)
        return ladder

    def _capture(self, shape: Shape) -> torch.cuda.CUDAGraph:
        def step() -> None:
            self._loss.copy_(self.update(self._batches.batch(self._graphs, shape)))

        return capture(step, self.dataset.device, self._pool, self.state)


class CapturedOutputs:
    """Outputs of ``model`` for the graphs ``indices``, always the same, in that order, reduced by ``reduce``."""

    def __init__(
        self,
        model: nn.Module,
        dataset: PackedDataset,
        indices: Int[Tensor, "some"],
        batch_size: int,
        reduce: Reduce = lambda output: output,
    ) -> None:
        graphs, position = indices.unique(return_inverse=True)
        parts = list(dataset.batches(graphs, batch_size))
        self._order = torch.cat([some for some, _ in parts]).argsort()[position].to(dataset.device)
        self._batches = [batch for _, batch in parts]  # the CUDA graph reads them at their addresses
        self._graph, was_training = torch.cuda.CUDAGraph(), model.training
        model.eval()
        with torch.no_grad():
            with _warm_up(dataset.device):
                for batch in self._batches:
                    model(batch)
            with _pause_garbage_collection(), torch.cuda.graph(self._graph, stream=_capture_stream(dataset.device)):
                self._out = torch.cat([reduce(model(batch).float()) for batch in self._batches])
        model.train(was_training)

    def __call__(self) -> Float[Tensor, "some outputs"]:
        self._graph.replay()
        return self._out[self._order]


def capture(
    step: Callable[[], None], device: torch.device, pool: tuple[int, int], state: Callable[[], Iterable[Tensor]]
) -> torch.cuda.CUDAGraph:
    """``step`` as a CUDA graph with its memory in ``pool``. It runs once before, as a warm-up.

    What the warm-up does to the random generator and to the tensors that ``state`` gives is undone. Other threads, such
    as one that pins memory, may go on meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    with _warm_up(device), _restore_state(device, state):
        step()
    where = {"pool": pool, "stream": _capture_stream(device), "capture_error_mode": "thread_local"}
    with _pause_garbage_collection(), torch.cuda.graph(graph, **where):
        step()
    return graph


@contextmanager
def _restore_state(device: torch.device, state: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Undo what the block does to the state and the random generator."""
    before = [tensor.detach().to("cpu", copy=True) for tensor in state()]
    random_state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(random_state, device)
        for tensor, old in zip(state(), before, strict=True):
            tensor.detach().copy_(old)


@contextmanager
def _warm_up(device: torch.device) -> Iterator[None]:
    """A warm-up on the stream that captures: kernels are compiled, and cuBLAS allocates the stream's workspace."""
    side, usual = _capture_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        yield
    usual.wait_stream(side)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Freeing a CUDA graph while another is captured ends the capture with an error (pytorch/pytorch#161037)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that captures."""
    return torch.cuda.Stream(device)
