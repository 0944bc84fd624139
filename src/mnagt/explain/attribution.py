"""Which nodes an answer is due to: integrated gradients, occlusion, and the deletion curve that checks them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.subgraph import subgraph
from mnagt.models.graph_model import GraphModel

Say = Callable[[Float[Tensor, "graphs outputs"]], Float[Tensor, "graphs"]]
"""The one number of a model's outputs that is to be explained."""
NODES_AT_ONCE = 8192
HALVINGS = 10
TOLERANCE = 0.01
"""Of the answer, that the steps of the integral may miss."""
TENTHS = 10


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much of an answer is due to each node."""

    nodes: Float[Tensor, "nodes"]
    """They add up to ``answer - baseline``, but for ``gap``."""
    answer: float
    baseline: float
    """What would be said if the nodes carried nothing."""

    @property
    def gap(self) -> float:
        """What the steps of the integral miss."""
        return self.answer - self.baseline - self.nodes.sum().item()


def integrated_gradients(
    model: GraphModel,
    dataset: PackedDataset,
    indices: Int[Tensor, "some"],
    say: Callable[[int], Say],
    *,
    steps: int = 8,
) -> list[Attribution]:
    r"""Integrated gradients (Sundararajan, Taly, Yan, 2017) of ``say(row)`` for each graph, ``row`` counting them.

    .. math:: a_v = h_v \cdot \int_0^1 \nabla_{h_v} f(t\, h)\, dt, \qquad \sum_v a_v = f(h) - f(0)

    :math:`h_v` is all that a node brings along: its vector from the encoder, and where the model counts subtrees, the
    vectors of those that end in it. Both go to zero together; nodes, edges and what edges carry stay, and so does what
    a forest beside the network says, which is part of f(0). The path begins with ``steps`` pieces, and those over which
    the gradients do not add up to the rise are halved.
    """
    if steps < 1:
        raise InputError(f"steps count from 1, got {steps}")
    model.eval()
    return [
        _integral(lambda t, row=row, index=index: _along(model, dataset, index, say(row), t), steps)
        for row, index in enumerate(indices.tolist())
    ]


def _integral(along: Callable[[Tensor], tuple[Tensor, Tensor]], steps: int) -> Attribution:
    ends = torch.linspace(0, 1, steps + 1)
    heights, slopes = along(ends)
    (baseline, *_, answer), total = heights.tolist(), torch.zeros(slopes.shape[1])
    allowed = TOLERANCE * max(1.0, abs(answer - baseline)) / steps
    left, right, low, high = ends[:-1], ends[1:], heights[:-1], heights[1:]
    for halvings in range(HALVINGS + 1):
        middle = (left + right) / 2
        height, slope = along(middle)
        part = (right - left)[:, None] * slope
        is_off = (high - low - part.sum(dim=1)).abs() > (allowed if halvings < HALVINGS else torch.inf)
        total += part[~is_off].sum(dim=0)
        if not is_off.any():
            break
        left, right = torch.cat([left[is_off], middle[is_off]]), torch.cat([middle[is_off], right[is_off]])
        low, high = torch.cat([low[is_off], height[is_off]]), torch.cat([height[is_off], high[is_off]])
    return Attribution(total, answer, baseline)


def _along(
    model: GraphModel, dataset: PackedDataset, index: int, say: Say, shares: Float[Tensor, "points"]
) -> tuple[Float[Tensor, "points"], Float[Tensor, "points nodes"]]:
    """What is said when nodes bring along only these shares of what they do, and how that rises by each node's part.

    The points are copies of the graph in one batch.
    """
    size, heights, slopes = int(dataset.sizes[index]), [], []
    for some in shares.split(max(1, NODES_AT_ONCE // max(1, size))):
        graph = dataset.batch(torch.full((len(some),), index))
        with torch.no_grad():
            whole = _brought(model, graph)
        share = some.to(dataset.device).repeat_interleave(size)[:, None]
        path = [(share * h).requires_grad_() for h in whole]
        with torch.enable_grad():
            said = say(_answer(model, path, graph))
            gradients = torch.autograd.grad(said.sum(), path)
        rise = sum((h * gradient).sum(dim=1) for h, gradient in zip(whole, gradients, strict=True))
        heights.append(said.detach().cpu())
        slopes.append(torch.as_tensor(rise).view(len(some), size).cpu())
    return torch.cat(heights), torch.cat(slopes)


def _brought(model: GraphModel, graph: GraphBatch) -> list[Float[Tensor, "nodes _"]]:
    """What each node brings along: from the encoder, and from the table of subtrees."""
    return [model.encoder(graph), *([] if model.subtrees is None else [model.subtrees.of_nodes(graph)])]


def _answer(
    model: GraphModel, brought: list[Float[Tensor, "nodes _"]], graph: GraphBatch
) -> Float[Tensor, "graphs outputs"]:
    """What the model says of nodes that bring this along."""
    x, *counted = brought
    start = model.readout.prepare(x, graph)
    return model.answer(graph, model.finish(*start, graph.nodes_of @ counted[0] if counted else None))


def occlusion(
    model: GraphModel, dataset: PackedDataset, indices: Int[Tensor, "some"], say: Callable[[int], Say]
) -> list[Float[Tensor, "nodes"]]:
    r"""What the answer loses if a node is cut out with its edges, :math:`a_v = f(G) - f(G \setminus v)`.

    They add up to nothing in particular: nodes may stand in for each other, or need each other.
    """
    model.eval()
    return [_lost(model, dataset, index, say(row)) for row, index in enumerate(indices.tolist())]


@torch.inference_mode()
def _lost(model: GraphModel, dataset: PackedDataset, index: int, say: Say) -> Float[Tensor, "nodes"]:
    size, left = int(dataset.sizes[index]), []
    for cut in torch.arange(size, device=dataset.device).split(max(1, NODES_AT_ONCE // max(1, size))):
        copies = dataset.batch(torch.full((len(cut),), index))
        is_kept = torch.arange(size, device=dataset.device) != cut[:, None]
        left.append(say(model(_without(copies, is_kept.flatten()))))
    answer = say(model(dataset.batch(torch.tensor([index]))))
    return (answer - torch.cat(left) if left else answer.new_zeros(0)).cpu()


@dataclass(frozen=True)
class DeletionCurve:
    """What is left of answers as nodes fall silent: those that speak most for them first, or at random.

    Means over the graphs, with 0, 10, ..., 90 % of the nodes silent.
    """

    ordered: tuple[float, ...]
    chance: tuple[float, ...]
    graphs: int

    @property
    def ratio(self) -> float:
        """Area under ``ordered`` over that under ``chance``: below 1 if the attributions find what matters."""
        return _area(self.ordered) / _area(self.chance)


def _area(curve: tuple[float, ...]) -> float:
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)


def deletion_curve(
    model: GraphModel,
    dataset: PackedDataset,
    indices: Int[Tensor, "some"],
    attributions: Sequence[Float[Tensor, "nodes"]],
    left: Callable[[int], Say],
    *,
    is_cut: bool = False,
    orders: int = 5,
    seed: int = 0,
) -> DeletionCurve:
    """Checks attributions by silencing nodes in their order; beside it ``orders`` random ones.

    A silent node brings nothing along. With ``is_cut`` it goes, and its edges with it: all that is left is then
    another graph, of a kind that the model has hardly seen, most of all where holes are spread at random.
    ``left(row)`` says what is left, from 0 to 1, of the answer for the graph in that row.
    """
    if len(indices) == 0:
        raise InputError("a deletion curve needs graphs, got none")
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(1 + orders, TENTHS)
    for row, (index, attribution) in enumerate(zip(indices.tolist(), attributions, strict=True)):
        size = len(attribution)
        ranks = [attribution.argsort(descending=True, stable=True).argsort()]
        ranks += [torch.randperm(size, generator=generator) for _ in range(orders)]
        silent = (torch.arange(TENTHS) * size / TENTHS).round()
        is_kept = (torch.stack(ranks)[:, None, :] >= silent[None, :, None]).flatten().to(dataset.device)
        graph = dataset.batch(torch.full((len(ranks) * TENTHS,), index))
        with torch.inference_mode():
            if is_cut:
                output = model(_without(graph, is_kept))
            else:
                output = _answer(model, [h * is_kept[:, None] for h in _brought(model, graph)], graph)
            total += left(row)(output).view(len(ranks), TENTHS).cpu()
    ordered, *chance = (total / len(indices)).tolist()
    return DeletionCurve(tuple(ordered), tuple(map(mean, zip(*chance, strict=True))), len(indices))


def _without(graph: GraphBatch, is_kept: Bool[Tensor, "nodes"]) -> GraphBatch:
    """The kept nodes with all that they carry; encodings are to be worked out again."""
    part, rows = subgraph(graph, is_kept, is_cut=True)
    labels, values = (None if column is None else column[rows] for column in (graph.node_labels, graph.node_values))
    return replace(part, node_labels=labels, node_values=values)
