"""Training steps and evaluations on a GPU, captured as CUDA graphs and replayed: one launch for a thousand kernels."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.data.padded_batches import NO_GRAPH, PaddedBatches
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.padding import Shape
from mnagt.inference.outputs import Reduce
from mnagt.ops.cuda_graphs import capture

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
        was_training = model.training
        model.eval()
        with torch.no_grad():
            self._graph = capture(partial(self._evaluate, model, reduce), dataset.device)
        model.train(was_training)

    def _evaluate(self, model: nn.Module, reduce: Reduce) -> None:
        self._out = torch.cat([reduce(model(batch).float()) for batch in self._batches])

    def __call__(self) -> Float[Tensor, "some outputs"]:
        self._graph.replay()
        return self._out[self._order]
