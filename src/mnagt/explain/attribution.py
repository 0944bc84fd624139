"""Attributions of nodes: integrated gradients, occlusion, and the deletion curve that checks them."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import ENCODINGS, add_encodings
from mnagt.graphs.molecules import TABLE_DESCRIPTORS
from mnagt.graphs.subgraph import induce_subgraph
from mnagt.inference.ensemble import EnsembleModel
from mnagt.inference.random_forest import ForestEnsemble
from mnagt.metrics import bootstrap_intervals
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.wl_features import FEATURES, NodeSum

Score = Callable[[Float[Tensor, "graphs outputs"]], Float[Tensor, "graphs"]]
"""Computes the explained output from the outputs of a model."""
Predictor = nn.Module
"""What ``TrainedModel.predictor`` gives: a ``GraphModel``, a ``ForestEnsemble`` or an ``EnsembleModel``."""
NODES_AT_ONCE = 4096
"""Nodes in a forward pass."""
HALVINGS = 10
"""How often an interval of the path may be halved."""
TOLERANCE = 0.01
"""Relative error of the integral at which intervals are halved no more."""
MIN_GRAPHS = 5
"""Graphs from which a deletion curve is compared with chance: of fewer, all may lie on one side of it by accident."""
TENTHS = 10
"""Points of a deletion curve."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """The share of each node in the explained output of a graph."""

    nodes: Float[Tensor, "nodes"]
    """They sum to ``output - baseline``, up to ``gap``."""
    output: float
    """The explained output."""
    baseline: float
    """The explained output where the inputs of all nodes are zero."""

    @property
    def gap(self) -> float:
        """The error of the numerical integral."""
        return self.output - self.baseline - self.nodes.sum().item()

    def format_sum(self) -> tuple[str, str, str, str]:
        """The output, the baseline, the sum of nodes and the rest, with as many decimals each: as texts they add up.

        >>> Attribution(torch.tensor([0.5, -0.625]), 4.0855, 4.2149).format_sum()
        ('4.09', '4.21', '-0.12', '+0.00')
        """
        numbers = (self.output, self.baseline, self.nodes.sum().item())
        largest = max(map(abs, numbers))
        decimals = min(max(2, 2 - math.floor(math.log10(largest))), 12) if 0 < largest < math.inf else 2
        output, baseline, nodes = (Decimal(f"{number:.{decimals}f}") + 0 for number in numbers)
        return f"{output}", f"{baseline}", f"{nodes:+}", f"{output - baseline - nodes:+}"


def integrated_gradients(
    model: Predictor,
    dataset: PackedDataset,
    indices: Int[Tensor, "some"],
    scores: Sequence[Score],
    *,
    steps: int = 8,
) -> list[Attribution]:
    r"""Integrated gradients (Sundararajan, Taly, Yan, 2017) of the score of each graph.

    .. math:: a_v = h_v \cdot \int_0^1 \nabla_{h_v} f(t\, h)\, dt, \qquad \sum_v a_v = f(h) - f(0)

    :math:`h_v` are the inputs of a node: its vector from the encoder and, if it has WL subtree features, those of
    the subtrees rooted at it. Both are scaled by t; edges and their features stay as they are, and so does the
    prediction of a random forest, which is part of f(0). The path begins with ``steps`` intervals. Those over which the
    attributions do not sum to the difference of f are halved.
    """
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    model.eval()
    graphs = (GraphCopies(model, dataset, index) for index in indices.tolist())
    return [
        _integrate(partial(_evaluate_on_path, model, graph, score), steps)
        for graph, score in zip(graphs, scores, strict=True)
    ]


class GraphCopies:
    """Copies of a graph in one batch, with the encodings that ``model`` reads, such as descriptors, computed once."""

    def __init__(self, model: Predictor, dataset: PackedDataset, index: int) -> None:
        self._dataset, self._index, self.num_nodes = dataset, index, int(dataset.sizes[index])
        members = list(model.members) if isinstance(model, EnsembleModel) else [model]
        read = {pair for member in members for pair in _network(member).encodings.items() if pair[0] in ENCODINGS}
        times = Counter(name for name, _ in read)  # what two members read in two sizes, each computes for itself
        sizes = {name: size for name, size in read if times[name] == 1}
        self._encodings = add_encodings(dataset.batch(torch.tensor([index])), sizes).encodings

    def batch(self, count: int) -> GraphBatch:
        copies = self._dataset.batch(torch.full((count,), self._index))
        return replace(copies, encodings={name: rows.repeat(count, 1) for name, rows in self._encodings.items()})


def _integrate(along: Callable[[Tensor], tuple[Tensor, Tensor]], steps: int) -> Attribution:
    """The integral of what ``along`` returns for points t of the path: values f, and attributions of nodes."""
    ends = torch.linspace(0, 1, steps + 1)
    values, slopes = along(ends)
    (baseline, *_, output), total = values.tolist(), torch.zeros(slopes.shape[1])
    tolerance = TOLERANCE * max(1.0, abs(output - baseline)) / steps
    left, right, low, high = ends[:-1], ends[1:], values[:-1], values[1:]
    for halvings in range(HALVINGS + 1):
        middle = (left + right) / 2
        value, slope = along(middle)
        part = (right - left)[:, None] * slope
        is_off = (high - low - part.sum(dim=1)).abs() > (tolerance if halvings < HALVINGS else torch.inf)
        total += part[~is_off].sum(dim=0)
        if not is_off.any():
            break
        left, right = torch.cat([left[is_off], middle[is_off]]), torch.cat([middle[is_off], right[is_off]])
        low, high = torch.cat([low[is_off], value[is_off]]), torch.cat([value[is_off], high[is_off]])
    return Attribution(total, output, baseline)


def _evaluate_on_path(
    model: Predictor, graphs: GraphCopies, score: Score, shares: Float[Tensor, "points"]
) -> tuple[Float[Tensor, "points"], Float[Tensor, "points nodes"]]:
    """The explained output where inputs are scaled by each of ``shares``, and its slope by each node's part.

    The points are copies of the graph in one batch.
    """
    size, values, slopes = graphs.num_nodes, [], []
    for batch in shares.split(max(1, NODES_AT_ONCE // max(1, size))):
        graph = graphs.batch(len(batch))
        with torch.no_grad():
            inputs = _node_inputs(model, graph)
        share = batch.to(graph.device).repeat_interleave(size)[:, None]
        path = [(share * h).requires_grad_() for h in inputs]
        with torch.enable_grad():
            value = score(_outputs(model, path, graph))
            gradients = torch.autograd.grad(value.sum(), path, materialize_grads=True)  # zero columns are read by none
        slope = sum((h * gradient).sum(dim=1) for h, gradient in zip(inputs, gradients, strict=True))
        values.append(value.detach().cpu())
        slopes.append(torch.as_tensor(slope).view(len(batch), size).cpu())
    return torch.cat(values), torch.cat(slopes)


def _network(model: Predictor) -> GraphModel:
    network = model.network if isinstance(model, ForestEnsemble) else model
    assert isinstance(network, GraphModel)
    return network


def _node_inputs(model: Predictor, graph: GraphBatch) -> list[Float[Tensor, "nodes _"]]:
    """The inputs of nodes: vectors from the encoder, and WL subtree features; of an ensemble, those of its members."""
    if isinstance(model, EnsembleModel):
        return [h for member in model.members for h in _node_inputs(member, graph)]
    network = _network(model)
    wl_features = (module for module in network.modules() if isinstance(module, NodeSum))
    inputs = [network.encoder(graph), *(module.node_features(graph) for module in wl_features)]
    if not any(h.shape[1] for h in inputs):
        raise InputError(
            "this model has no vectors of nodes, so there are no gradients to explain it by; explain another model, or "
            "call mnagt.explain.attribution.occlusion, which removes nodes"
        )
    return inputs


def _outputs(
    model: Predictor, inputs: list[Float[Tensor, "nodes _"]], graph: GraphBatch
) -> Float[Tensor, "graphs outputs"]:
    """Outputs of the model for these inputs of nodes."""
    if isinstance(model, EnsembleModel):
        members, outputs = list(model.members), []
        for number, member in enumerate(members):
            count = len(inputs) // len(members)
            outputs.append(_outputs(member, inputs[number * count : (number + 1) * count], graph))
        return model.combine(outputs)
    network, (x, *wl_features) = _network(model), inputs
    encodings = {} if not wl_features else {FEATURES: wl_features[0]}
    readout_inputs = network.readout.prepare(x, replace(graph, encodings={**graph.encodings, **encodings}))
    output = network.head(network.read_out(*readout_inputs))
    return model.combine(output, graph) if isinstance(model, ForestEnsemble) else output


@torch.inference_mode()
def occlusion(
    model: Predictor, dataset: PackedDataset, indices: Int[Tensor, "some"], scores: Sequence[Score]
) -> list[Float[Tensor, "nodes"]]:
    r"""The fall of the explained output when a node is removed with its edges, :math:`a_v = f(G) - f(G \setminus v)`.

    Unlike integrated gradients, these have no fixed sum: nodes can be redundant, or need each other.
    """
    model.eval()
    attributions = []
    for index, score in zip(indices.tolist(), scores, strict=True):
        nodes = torch.arange(int(dataset.sizes[index]), device=dataset.device)
        whole, left = score(model(dataset.batch(torch.tensor([index])))), []
        for removed in nodes.split(max(1, NODES_AT_ONCE // max(1, len(nodes)))) if len(nodes) else ():
            copies = dataset.batch(torch.full((len(removed),), index))
            left.append(score(model(_without(copies, (nodes != removed[:, None]).flatten()))))
        attributions.append((whole - torch.cat(left) if left else whole.new_zeros(0)).cpu())
    return attributions


@dataclass(frozen=True)
class DeletionCurve:
    """What is left of predictions with 0, 10, ..., 90 % of the nodes deleted; means over graphs."""

    ordered: tuple[float, ...]
    """Nodes with the largest attributions deleted first."""
    chance: tuple[float, ...]
    """Nodes deleted in random order."""
    graphs: int
    """Number of graphs."""
    areas: tuple[tuple[float, float], ...] = ()
    """Of each graph, the areas under the two curves."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bootstrap interval of ``ratio`` over the graphs, at the level 0.95; None for fewer than ``MIN_GRAPHS``."""
        if self.graphs < MIN_GRAPHS:
            return None
        areas = torch.tensor(self.areas, dtype=torch.float64).view(-1, 2)

        def compute(rows: Int[Tensor, "resamples graphs"]) -> dict[str, Tensor]:
            ordered, chance = areas[rows].sum(dim=1).unbind(dim=1)
            return {"ratio": ordered / chance}

        interval = bootstrap_intervals(compute, len(areas)).get("ratio")
        return None if interval is None else (interval[0], interval[1])

    @property
    def verdict(self) -> str:
        """Whether attributions find the nodes that matter: better than chance, no better, or worse.

        An interval that ends within 0.005 of 1 is no better: its effect is too small to matter.
        """
        if self.interval is None:
            return f"not compared with chance, which takes {MIN_GRAPHS} graphs or more"
        low, high = (round(end, 2) for end in self.interval)
        return "better than chance" if high < 1 else "worse than chance" if low > 1 else "no better than chance"

    @property
    def ratio(self) -> float:
        """Area under ``ordered`` over that under ``chance``: below 1 if the attributions find the nodes that matter."""
        ordered, chance = torch.trapezoid(torch.tensor([self.ordered, self.chance], dtype=torch.float64)).tolist()
        return ordered / chance


def deletion_curve(
    model: Predictor,
    dataset: PackedDataset,
    indices: Int[Tensor, "some"],
    attributions: Sequence[Float[Tensor, "nodes"]],
    confidences: Sequence[Score],
    *,
    is_cut: bool = False,
    orders: int = 5,
    seed: int = 0,
) -> DeletionCurve:
    """Check attributions by deleting nodes in their order, and in ``orders`` random orders.

    The inputs of a deleted node are zero. With ``is_cut`` it is removed with its edges: what is left is then another
    graph, unlike those that the model was trained on, above all after random deletions. ``confidences``
    compute from outputs what is left of the prediction for each graph, from 0 to 1.
    """
    if len(indices) == 0:
        raise InputError("a deletion curve needs graphs, got none")
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    curves = torch.zeros(len(indices), 1 + orders, TENTHS)
    rows = zip(indices.tolist(), attributions, confidences, strict=True)
    for row, (index, attribution, confidence) in enumerate(rows):
        size = len(attribution)
        ranks = [attribution.argsort(descending=True, stable=True).argsort()]
        ranks += [torch.randperm(size, generator=generator) for _ in range(orders)]
        num_deleted = (torch.arange(TENTHS) * size / TENTHS).round()
        is_kept = (torch.stack(ranks)[:, None, :] >= num_deleted[None, :, None]).flatten().to(dataset.device)
        graph = GraphCopies(model, dataset, index).batch(len(ranks) * TENTHS)
        with torch.inference_mode():
            if is_cut:
                output = model(_without(graph, is_kept))
            else:
                output = _outputs(model, [h * is_kept[:, None] for h in _node_inputs(model, graph)], graph)
            curves[row] = confidence(output).view(len(ranks), TENTHS).cpu()
    both = torch.stack([curves[:, 0], curves[:, 1:].mean(dim=1)], dim=1).double()
    ordered, chance = both.mean(dim=0).tolist()
    areas = tuple((a, b) for a, b in torch.trapezoid(both).tolist())
    return DeletionCurve(tuple(ordered), tuple(chance), len(indices), areas)


def _without(graph: GraphBatch, is_kept: Bool[Tensor, "nodes"]) -> GraphBatch:
    """The subgraph of the kept nodes with their features; encodings are computed again, but for columns of a table."""
    part, rows = induce_subgraph(graph, is_kept, is_cut=True)
    labels, values = (None if column is None else column[rows] for column in (graph.node_labels, graph.node_values))
    encodings = {name: column[rows] for name, column in graph.encodings.items() if name == TABLE_DESCRIPTORS}
    return replace(part, node_labels=labels, node_values=values, encodings=encodings)
