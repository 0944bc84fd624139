"""CUDA graphs for a training loop of one's own: loss and gradients of a model on PyTorch Geometric's batches."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt import ops
from mnagt.errors import InputError, one_line
from mnagt.graphs.batch import GraphBatch, Padding
from mnagt.graphs.padding import PADDING_GRAPH_SIZE, Shape, pad_batch
from mnagt.nn.graph_inputs import keep_graph_batch
from mnagt.ops.cuda_graphs import capture
from mnagt.ops.functional import batch_norm

HEADROOM = 1.1
"""A shape is made for batches with so many times the nodes and edges of the first that needs it."""
MANY = 16
"""A notice is given of so many shapes: each takes a second to capture."""
STRUCTURE = ("node_ptr", "in_ptr", "source", "edge_order")
"""The tensors of a ``GraphBatch`` that change from batch to batch."""

_log = logging.getLogger(__name__)
NumValid = Mapping[int, Int[Tensor, ""]]
"""How many rows are valid of a tensor with so many rows: those of nodes, edges or graphs, padding included."""


class FixedShape(NamedTuple):
    """What batches have in common that run by the same CUDA graph."""

    shape: Shape
    """Its graphs are valid; padding graphs come after them."""
    max_num_nodes: int
    is_symmetric: bool

    @property
    def num_graphs(self) -> int:
        """Graphs, padding included."""
        return self.shape.graphs + -(-self.shape.nodes // PADDING_GRAPH_SIZE)

    def holds(self, other: "FixedShape") -> bool:
        has_as_many = self.shape.graphs == other.shape.graphs and self.is_symmetric == other.is_symmetric
        return has_as_many and self.shape.holds(other.shape) and self.max_num_nodes >= other.max_num_nodes

    def round_up(self) -> "FixedShape":
        """Larger ones, whose numbers of graphs, nodes and edges differ: they tell what the rows of a tensor are."""
        graphs, nodes, edges = self.shape
        shape = Shape(graphs, int(nodes * HEADROOM), int(edges * HEADROOM)).round_up()
        largest = max(PADDING_GRAPH_SIZE, 1 << (self.max_num_nodes - 1).bit_length())
        fixed = FixedShape(shape, largest, self.is_symmetric)
        while edges and fixed.shape.edges in (graphs, fixed.num_graphs, fixed.shape.nodes):
            fixed = fixed._replace(shape=fixed.shape._replace(edges=fixed.shape.edges + 1))
        return fixed


class CapturedStep(NamedTuple):
    """A CUDA graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    loss: Float[Tensor, ""]
    gradients: list[Tensor | None]


class CapturedBackward:
    """``loss(data)`` and its gradients, on a GPU as one CUDA graph. Stands for ``loss(data).backward()`` in a loop.

    Each batch is padded to a fixed shape by graphs that come after its own; there are several shapes if batches differ
    much. Optimizer, schedule and clipping stay outside, as they are. Gradients replace those of the step before. If
    modules change between training and evaluation, or parameters are frozen or moved, the loss is captured anew.
    ``BatchNorm1d`` and our layers leave padding out. Other modules that mix rows of padding into others are an error in
    the first step. On a CPU the same is computed without a CUDA graph, to try a loop.

    Args:
        model: its parameters get gradients.
        loss: from a batch, padded, to the mean loss of its graphs. Outputs of padding are to be left out, by
            ``model(data)[:len(data.y)]``. ``data.num_graphs`` counts padding. It may not wait for the GPU, and Python
            values in ``data`` stay those of the first batch.

    >>> from torch_geometric.data import Batch, Data
    >>> from torch_geometric.nn import global_add_pool
    >>> from mnagt.nn import MNAGTConv
    >>> edges = torch.tensor([[0, 1], [1, 0]])
    >>> data = Batch.from_data_list([Data(x=torch.ones(2, 4), edge_index=edges, y=torch.ones(1)) for _ in range(3)])
    >>> model = MNAGTConv(4, heads=2)
    >>> def loss(data):
    ...     x = model(data.x, data.edge_index, data.batch)
    ...     out = global_add_pool(x, data.batch, data.num_graphs)[: len(data.y)]
    ...     return (out.mean(dim=1) - data.y).square().mean()
    >>> backward = CapturedBackward(model, loss)
    >>> backward(data).shape  # then optimizer.step()
    torch.Size([])
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any], Float[Tensor, ""]]) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.BatchNorm1d) and module.momentum is None:
                raise InputError(f"{name} has momentum=None, which cannot be captured; give it a momentum")
        self.model, self.loss = model, loss
        self._captured: dict[FixedShape, CapturedStep | None] = {}
        self._mode: tuple = ()
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else (0, 0)

    def __call__(self, data: Any) -> Float[Tensor, ""]:
        """The loss of a batch of PyTorch Geometric, on any device; gradients are left in the parameters."""
        device = next(self.model.parameters()).device
        graph = GraphBatch.from_edges(data.edge_index, batch=data.batch, num_graphs=data.num_graphs)
        shape = Shape(graph.num_graphs, graph.num_nodes, graph.num_edges)
        needed = FixedShape(shape, graph.max_num_nodes, graph.is_symmetric)
        fixed = min((each for each in self._captured if each.holds(needed)), default=needed.round_up())
        inputs = _pad(data, graph, fixed)
        if (mode := _describe_mode(self.model, device)) != self._mode:
            self._captured, self._mode = {}, mode
        if not ops.is_usable(device):
            is_first = not self._captured
            self._captured[fixed] = None
            return self._run(data, {name: t.to(device) for name, t in inputs.items()}, fixed, is_checked=is_first)
        if (captured := self._captured.get(fixed)) is None:
            captured = self._captured[fixed] = self._capture(data, inputs, fixed, device)
            if len(self._captured) == MANY:
                _log.warning("%d shapes of batches were captured; give all batches as many graphs", MANY)
        else:
            _copy_into(captured.inputs, inputs)
        captured.graph.replay()
        for parameter, gradient in zip(self.model.parameters(), captured.gradients, strict=True):
            parameter.grad = gradient
        return captured.loss.clone()

    def _capture(self, data: Any, inputs: dict[str, Tensor], fixed: FixedShape, device: torch.device) -> CapturedStep:
        inputs, loss = {name: t.to(device, copy=True) for name, t in inputs.items()}, torch.zeros((), device=device)

        def step() -> None:
            is_warm_up = not torch.cuda.is_current_stream_capturing()
            loss.copy_(self._run(data, inputs, fixed, is_checked=is_warm_up))

        try:
            graph = capture(step, device, self._pool, self.model.buffers)
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            raise InputError(
                "the loss cannot be captured as a CUDA graph: it may not wait for the GPU, as .item() does, or "
                f"global_add_pool(x, batch) without data.num_graphs ({one_line(error)})"
            ) from error
        return CapturedStep(graph, inputs, loss, [parameter.grad for parameter in self.model.parameters()])

    def _run(self, data: Any, inputs: dict[str, Tensor], fixed: FixedShape, is_checked: bool) -> Float[Tensor, ""]:
        """The loss of a padded batch; gradients are left in the parameters."""
        data, graph = _assemble(data, inputs, fixed)
        keep_graph_batch(graph, data.edge_index, data.batch)
        rows = (fixed.num_graphs, fixed.shape.nodes, fixed.shape.edges)
        num_valid = dict(zip(rows, inputs["graph.num_valid"].unbind(), strict=True))
        for parameter in self.model.parameters():
            parameter.grad = None
        check = _check_padding(self.model, data, num_valid) if is_checked else nullcontext()
        with _leave_out_padding(self.model, num_valid), check:
            loss = self.loss(data)
            loss.backward()
        return loss.detach()


def _describe_mode(model: nn.Module, device: torch.device) -> tuple:
    """What a CUDA graph of ``model`` is captured for: addresses of parameters, which of them learn, mode, precision."""
    parameters = tuple((parameter.data_ptr(), parameter.requires_grad) for parameter in model.parameters())
    is_training = tuple(module.training for module in model.modules())
    return parameters, is_training, ops.precision(), ops.autocast_type(device)


def _pad(data: Any, graph: GraphBatch, fixed: FixedShape) -> dict[str, Tensor]:
    """The tensors of ``data``, and those of its ``GraphBatch``, padded to the shape ``fixed``."""
    padded = pad_batch(graph, fixed.shape, fixed.max_num_nodes)
    assert padded.padding is not None
    tensors = {f"graph.{name}": getattr(padded, name) for name in STRUCTURE}
    tensors["graph.num_valid"] = torch.stack(padded.padding[:3])
    nodes, edges = graph.num_nodes, graph.num_edges
    for name, value in data.to_dict().items():
        if not isinstance(value, Tensor):
            continue
        rows = len(value) if value.dim() else 0
        if name == "edge_index":
            loops = padded.source[edges:].long()
            tensors[name] = torch.cat([value, torch.stack([loops, loops]).to(value.dtype)], dim=1)
        elif name == "batch":
            graphs = torch.arange(fixed.shape.nodes - nodes, device=value.device) // PADDING_GRAPH_SIZE
            tensors[name] = torch.cat([value, fixed.shape.graphs + graphs])
        elif name == "ptr":
            tensors[name] = padded.node_ptr
        elif rows == edges and ("edge" in name or rows != nodes):
            tensors[name] = _pad_rows(value, fixed.shape.edges)
        elif rows == nodes and not (name == "y" and rows == graph.num_graphs):
            tensors[name] = _pad_rows(value, fixed.shape.nodes)
        else:
            tensors[name] = value
    return tensors


def _pad_rows(value: Tensor, rows: int) -> Tensor:
    """``value`` and copies of its first row, which any model can compute with."""
    first = value[:1] if len(value) else value.new_zeros(1, *value.shape[1:])
    return torch.cat([value, first.expand(rows - len(value), *value.shape[1:])])


def _copy_into(inputs: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Copy the tensors of a batch into those that were captured."""
    for name in {**inputs, **tensors}:
        before, now = (list(each[name].shape) if name in each else "not there" for each in (inputs, tensors))
        if before != now:
            raise InputError(
                f"data.{name} is {now}, and was {before} in the batch that was captured; only rows of "
                "nodes, edges and graphs may change: leave it out, by exclude_keys of the DataLoader"
            )
        inputs[name].copy_(tensors[name], non_blocking=True)


def _assemble(data: Any, tensors: Mapping[str, Tensor], fixed: FixedShape) -> tuple[Any, GraphBatch]:
    """The padded batch, and its ``GraphBatch``, with nothing computed of it yet."""
    data = copy.copy(data)
    for name, value in tensors.items():
        if not name.startswith("graph."):
            data[name] = value
    data._num_graphs = fixed.num_graphs
    if "num_nodes" in data:
        data.num_nodes = fixed.shape.nodes
    node_ptr, in_ptr, source, edge_order = (tensors[f"graph.{name}"] for name in STRUCTURE)
    is_captured = ops.is_usable(node_ptr.device)
    graph = GraphBatch(
        sizes=node_ptr[1:].to("meta") if is_captured else node_ptr.diff().cpu(),
        node_ptr=node_ptr,
        in_ptr=in_ptr,
        source=source,
        is_symmetric=fixed.is_symmetric,
        padding=Padding(*tensors["graph.num_valid"].unbind(), max_num_nodes=fixed.max_num_nodes),
    )
    object.__setattr__(graph, "edge_order", edge_order)
    return data, graph


@contextmanager
def _leave_out_padding(model: nn.Module, num_valid: NumValid) -> Iterator[None]:
    """Within the block, each ``BatchNorm1d`` of ``model`` takes its statistics over the valid rows."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.forward = partial(_batch_norm, norm, num_valid)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _batch_norm(norm: nn.BatchNorm1d, num_valid: NumValid, x: Tensor) -> Tensor:
    rows = num_valid.get(len(x)) if x.dim() == 2 else None
    if rows is None or not (norm.training or norm.running_mean is None):
        return nn.BatchNorm1d.forward(norm, x)
    mean, var = norm.running_mean, norm.running_var
    if mean is None or var is None:
        mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    assert norm.momentum is not None
    return batch_norm(x, norm.weight, norm.bias, mean, var, rows, momentum=norm.momentum, eps=norm.eps, relu=False)


@contextmanager
def _check_padding(model: nn.Module, data: Any, num_valid: NumValid) -> Iterator[None]:
    """Raise ``InputError`` if the loss depends on padding: if a gradient with respect to a row of it is not zero.

    Watches the outputs of all modules, and the columns of ``data``, whose copies in the block need a gradient.
    """
    gradients: list[tuple[str, Tensor]] = []

    def watch(name: str, x: Any) -> None:
        rows = num_valid.get(len(x)) if isinstance(x, Tensor) and x.dim() else None
        if rows is not None and x.requires_grad:
            x.register_hook(lambda grad: gradients.append((name, _has_gradient(grad, rows))))

    def watch_output(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        for each in output if isinstance(output, tuple) else (output,):
            watch(name, each)

    for name, value in data.to_dict().items():
        if isinstance(value, Tensor) and value.is_floating_point() and len(value) in num_valid:
            data[name] = value.detach().requires_grad_().clone()
            watch(f"data.{name}", data[name])
    modules = [(name, module) for name, module in model.named_modules() if name]
    handles = [module.register_forward_hook(partial(watch_output, name)) for name, module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for name, has_gradient in gradients:  # the last module first
        if has_gradient:
            raise InputError(
                f"the loss depends on padding, by way of {name}: what reads it mixes rows of all graphs, as a norm "
                "over a batch does, or a loss without [:len(data.y)]; give the norm data.batch, or take BatchNorm1d, "
                "whose statistics leave padding out"
            )


def _has_gradient(grad: Tensor, num_valid: Int[Tensor, ""]) -> Tensor:
    """Whether rows after the valid ones have a gradient other than zero."""
    is_padding = torch.arange(len(grad), device=grad.device) >= num_valid
    return ((grad != 0).reshape(len(grad), -1).any(dim=1) & is_padding).any()
