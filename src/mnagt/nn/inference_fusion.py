"""Inference fusion of the default model, for small batches on a CPU, where calls of Python take most of the time.

BatchNorm and LayerScale are multiplied into the neighbouring linear maps, maps of the same rows become one, and kinds
of edges have one table. Outputs are those of the model up to rounding.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.attention.attend import attend
from mnagt.attention.kernels import GnnHop
from mnagt.attention.mixers import Adaptive
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.batch import GraphBatch
from mnagt.nn.convolutions import GIN, GINE, Block
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import Layer, LayerScale
from mnagt.nn.norms import BatchNorm
from mnagt.nn.shapes import EdgeVectors, NodeVectors


class FusedModel:
    """``model`` in fused form, if its layers can be fused; fused again when its weights change."""

    def __init__(self, model: GraphModel) -> None:
        self._model, self._kept = model, None
        self._is_known = type(model) is GraphModel and bool(model.layers) and all(map(_is_known, model.layers))

    def __call__(self) -> GraphModel:
        """A model with the outputs of ``model`` in evaluation.

        Changes of weights are noticed, but for those by ``.data``; so are hooks on the model and its layers, which
        would not be called, and not those on parts of layers.
        """
        watched = (self._model, *self._model.layers)
        is_watched = any(each._forward_hooks or each._forward_pre_hooks for each in watched)
        if self._model.training or not self._is_known or is_watched:
            return self._model
        if self._kept is None or not self._kept[0].is_as_it_was():
            self._kept = _Weights.of(self._model.layers), _fuse(self._model)
        return self._kept[1]


class _Weights(NamedTuple):
    """Weights, and how often each had been written to."""

    tensors: list[Tensor]
    versions: list[int]
    first: Tensor
    """Shares memory with the first, so that no other tensor gets its place: a model that went elsewhere is noticed."""

    @classmethod
    def of(cls, layers: nn.Module) -> "_Weights":
        tensors = [*layers.parameters(), *layers.buffers()]
        return cls(tensors, [each._version for each in tensors], tensors[0].detach())

    def is_as_it_was(self) -> bool:
        is_there = self.tensors[0].data_ptr() == self.first.data_ptr()
        return is_there and [each._version for each in self.tensors] == self.versions


def _is_known(layer: nn.Module) -> bool:
    """Whether the layer is made as that of ``mnagt`` by default, GIN or GINE beside attention."""
    if type(layer) is not Layer:
        return False
    attention, kernels = layer.attention, layer.attention.kernels
    return (
        type(attention) is MultiKernelAttention
        and attention.variant == "softmax"
        and attention.bias is attention.spectral is attention.gate is None
        and [type(kernel) for kernel in kernels] == [GnnHop] * len(kernels)
        and [(kernel.k, kernel.value) for kernel in kernels] == [(k, 0) for k in range(len(layer.gnn) + 1)]
        and type(layer.mixer) is Adaptive
        and all(type(norm) is BatchNorm for norm in (layer.norm_attention, layer.norm_ffn))
        and all(type(scale) is LayerScale for scale in (layer.scale_attention, layer.scale_ffn))
        and all(_is_known_conv(conv) for conv in (*layer.gnn, layer.residual))
    )


def _is_known_conv(conv: nn.Module) -> bool:
    conv = conv.conv if type(conv) is Block else conv
    return type(conv) is GIN or (type(conv) is GINE and conv.edges.kinds is not None)


@torch.no_grad()
def _fuse(model: GraphModel) -> GraphModel:
    layers = [_FusedLayer(layer) for layer in model.layers if isinstance(layer, Layer)]
    return GraphModel(model.encoder, layers, model.readout, model.head, model.features).eval()


class _Map(NamedTuple):
    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, "out"]

    def __call__(self, x: Float[Tensor, "rows in"]) -> Float[Tensor, "rows out"]:
        return F.linear(x, self.weight, self.bias)


def _affine(norm: BatchNorm) -> tuple[Float[Tensor, "dim"], Float[Tensor, "dim"]]:
    """Factor and summand that BatchNorm comes to in evaluation, in double precision."""
    assert norm.weight is not None
    assert norm.bias is not None
    factor = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()
    return factor, norm.bias.double() - norm.running_mean.double() * factor


def _then(linear: nn.Linear, factor: Tensor, summand: Tensor | float = 0.0) -> _Map:
    """The linear map, then times ``factor``, plus ``summand``."""
    bias = 0.0 if linear.bias is None else linear.bias.double() * factor
    weight, bias = linear.weight.double() * factor[:, None], bias + summand
    return _Map(weight.to(linear.weight.dtype), torch.as_tensor(bias).to(linear.weight.dtype))


class _FusedConv:
    """GIN or GINE, with BatchNorm and ReLU after it if it is a ``Block``."""

    def __init__(self, conv: nn.Module) -> None:
        self.is_block = isinstance(conv, Block)
        inner = conv.conv if isinstance(conv, Block) else conv
        assert isinstance(inner, GIN | GINE)
        self.edges = inner.edges if isinstance(inner, GINE) else None
        self.first = _then(inner.mlp.first, *_affine(inner.mlp.norm))
        factor, summand = _affine(conv.norm) if isinstance(conv, Block) else (torch.ones(()).double(), 0.0)
        self.second = _then(inner.mlp.second, factor.expand(inner.mlp.second.out_features), summand)

    def __call__(self, x: NodeVectors, edges: EdgeVectors | None, graph: GraphBatch) -> NodeVectors:
        if edges is None:
            around = graph.neighbours.product(x, with_self=True)
        else:
            around = (graph.edges_into @ (x.index_select(0, graph.source) + edges).relu_()).add_(x)
        out = self.second(self.first(around).relu_())
        return out.relu_() if self.is_block else out


class _FusedLayer(nn.Module):
    """``Layer`` in evaluation. Its tensors are plain: they neither learn nor move."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        attention, mixer, before, after = layer.attention, layer.mixer, layer.norm_attention, layer.norm_ffn
        scale, scale_ffn, (first, act, *_, last) = layer.scale_attention, layer.scale_ffn, layer.ffn.children()
        assert isinstance(mixer, Adaptive)
        assert isinstance(before, BatchNorm)
        assert isinstance(after, BatchNorm)
        assert isinstance(scale, LayerScale)
        assert isinstance(scale_ffn, LayerScale)
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        like, self.heads = first.weight, (len(attention.kernels), attention.heads, attention.head_dim)
        self.factor, self.summand = (part.to(like) for part in _affine(before))
        self.gnn, self.residual = [_FusedConv(conv) for conv in layer.gnn], _FusedConv(layer.residual)
        edges = [conv.edges for conv in (*self.gnn, self.residual) if conv.edges is not None]
        self.kind = edges[0].kind if edges else None
        self.edge_table = torch.cat([each.table() for each in edges], dim=1) if edges else None

        def of_each(weight: Tensor) -> Float[Tensor, "kernels out in"]:
            return weight.detach().expand(self.heads[0], -1, -1)

        query, key, value, out = (
            of_each(part.weight)
            for part in (attention.to_query, attention.to_key, attention.to_value, attention.to_out)
        )
        self.compare, self.value = list(torch.cat([query, key], dim=1)), value.flatten(0, 1)
        out = out.double()  # of each kernel: what it brings, times the scale, and what the mixer looks at
        out = torch.cat([out * scale.factor.double()[:, None], mixer.project.weight.double() @ out], dim=1)
        self.out, self.score = out.mT.contiguous().to(like), mixer.score.weight[0].detach()
        factor, summand = _affine(after)
        bias = first.bias.double() + first.weight.double() @ summand
        self.first, self.act = _Map((first.weight.double() * factor).to(like), bias.to(like)), act
        self.last = _then(last, scale_ffn.factor.double())

    def forward(self, x: NodeVectors, graph: GraphBatch) -> NodeVectors:
        inputs, edges = [torch.addcmul(self.summand, x, self.factor)], [None] * (len(self.gnn) + 1)
        if self.kind is not None and self.edge_table is not None:
            edges = self.edge_table.index_select(0, self.kind(graph)).split(x.shape[1], dim=1)
        for conv, carried in zip(self.gnn, edges, strict=False):
            inputs.append(conv(inputs[-1], carried, graph))
        compared = [F.linear(h, weight) for h, weight in zip(inputs, self.compare, strict=True)]
        query, key = torch.stack(compared, dim=1).chunk(2, dim=2)
        query, key, value = (t.reshape(len(x), *self.heads) for t in (query, key, F.linear(inputs[0], self.value)))
        z = attend(query, key, value, graph).flatten(2).transpose(0, 1)
        brought, looked_at = torch.bmm(z, self.out).chunk(2, dim=2)
        share = (torch.tanh(looked_at) @ self.score).softmax(dim=0)[:, :, None]
        x = (share * brought).sum(dim=0) + self.residual(x, edges[-1], graph)
        return self.last(self.act(self.first(x))).add_(x)
