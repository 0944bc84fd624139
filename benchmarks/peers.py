"""The graph transformers that people write today, over PyTorch Geometric's batches, to time ours against.

``Padded`` is our default model itself, parameter by parameter, written as GraphGPS and its kin write theirs. The others
are the published designs at the same width, depth, heads and head, as their public code has them:

- ``Gps``: PyTorch Geometric's ``GPSConv`` around a ``GINConv`` (Rampášek et al., 2022);
- ``GraphTrans``: a GIN, then PyTorch's own ``TransformerEncoder`` with a CLS token (Wu et al., 2021), padded by
  ``to_dense_batch`` where its authors loop over the graphs;
- ``Sat``: queries and keys from a GNN, softmax by scatter over all pairs of each graph's nodes (Chen et al., 2022).

Ours attends through three kernels a layer and takes three message-passing steps; these attend once, after one step
(``Sat``: two), and are that much smaller. Dropout is zero everywhere, as in ours by default: PyTorch then has its fused
attention to offer.

Nodes carry what our models read: one-hot labels where there are labels (as ``TUDataset`` keeps them), else their
degree as a number for an embedding, which is leaner than the 492 one-hot columns that COLLAB would need.
"""

import warnings
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.graphs.convert import to_pyg
from mnagt.models.convolutions import GIN, Block
from mnagt.models.encoders import NodeEncoder
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import Layer
from mnagt.models.norms import BatchNorm
from mnagt.models.readouts import Sum

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, at import
    from torch_geometric.data import Data
    from torch_geometric.nn import GINConv, GPSConv, MessagePassing, global_add_pool
    from torch_geometric.utils import softmax, to_dense_batch

DIM, DEPTH, HEADS = 64, 4, 2
DEGREES = 513
"""Embeddings of degrees, as ours."""


def pyg_list(dataset: PackedDataset, graphs: Tensor | None = None, *, with_pairs: bool = False) -> list[Data]:
    """The graphs (all, or those of these numbers) as PyTorch Geometric keeps them.

    ``with_pairs`` adds what ``Sat`` reads: all pairs of nodes, as its authors' data set has them.
    """
    batch = dataset.batch(torch.arange(len(dataset)) if graphs is None else graphs)
    some = cast(list[Any], to_pyg(batch).to_data_list())
    degrees = batch.in_degree.long().split(batch.sizes.tolist())
    for graph, degree in zip(some, degrees, strict=True):
        graph.x = degree if graph.x is None else F.one_hot(graph.x[:, 0].long(), dataset.features.nodes.labels[0]).float()
        if with_pairs:
            node = torch.arange(graph.num_nodes)
            graph.complete_edge_index = torch.cartesian_prod(node, node).T.flip(0).contiguous()
    return some


def encoder(labels: int) -> nn.Module:
    """Vectors from one-hot labels, or from degrees where there are none."""
    return nn.Linear(labels, DIM) if labels else nn.Embedding(DEGREES, DIM)


def gin_conv() -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(DIM, DIM), BatchNorm(DIM), nn.ReLU(), nn.Linear(DIM, DIM)))


class Padded(nn.Module):
    """Our default model, made of the very parts of ``model``, with scatter, padding and a mask."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        if not isinstance(model.readout, Sum):
            raise TypeError(f"the twin pools by sum, and the model by {type(model.readout).__name__}")
        self.encoder = PaddedEncoder(model.encoder)
        self.layers = nn.ModuleList(PaddedLayer(cast(Layer, layer)) for layer in model.layers)
        self.head = model.head

    def forward(self, data: Any) -> Tensor:
        x = self.encoder(data.x)
        for layer in self.layers:
            x = layer(x, data.edge_index, data.batch)
        return self.head(global_add_pool(x, data.batch, data.num_graphs))


class PaddedEncoder(nn.Module):
    """One-hot labels times the table, or the table's rows by degree."""

    def __init__(self, encoder: NodeEncoder) -> None:
        super().__init__()
        columns = encoder.columns
        if columns is None:
            assert encoder.degree is not None
            self.table = encoder.degree.table
        else:
            assert columns.labels is not None
            assert columns.values is None
            self.table = columns.labels.table

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return x @ self.table.weight[1:]  # the first row is that of no label
        return self.table(x.clamp(max=self.table.num_embeddings - 1))


class PaddedConv(nn.Module):
    """A step of message passing by ``GINConv``, with BatchNorm and ReLU after it."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        assert isinstance(block.conv, GIN)
        self.conv = GINConv(nn.Identity())
        self.conv.nn = block.conv.mlp  # given to the constructor, its weights would be drawn anew
        self.after = block.after

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.after(self.conv(x, edge_index))


class PaddedLayer(nn.Module):
    """Our layer, one attention call for each kernel."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        attention = layer.attention
        self.to_query, self.to_key, self.to_value = attention.to_query, attention.to_key, attention.to_value
        self.to_out, self.heads = attention.to_out, attention.heads
        self.norm_attention, self.norm_ffn = layer.norm_attention, layer.norm_ffn
        self.scale_attention, self.scale_ffn = layer.scale_attention, layer.scale_ffn
        self.mixer, self.ffn = layer.mixer, layer.ffn
        self.gnn = nn.ModuleList(PaddedConv(cast(Block, block)) for block in layer.gnn)
        self.residual = PaddedConv(cast(Block, layer.residual))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        seen = [self.norm_attention(x)]
        for conv in self.gnn:
            seen.append(conv(seen[-1], edge_index))
        z = torch.stack([self.attend(k, h, seen[0], batch) for k, h in enumerate(seen)], dim=1)
        x = self.scale_attention(self.mixer(z)) + self.residual(x, edge_index)
        return self.scale_ffn(self.ffn(self.norm_ffn(x))) + x

    def attend(self, k: int, h: Tensor, x: Tensor, batch: Tensor) -> Tensor:
        """What kernel ``k`` brings. Projecting first and padding then is the faster order: fewer rows to project."""
        query, key = F.linear(h, self.to_query.weight[k]), F.linear(h, self.to_key.weight[k])
        value = F.linear(x, self.to_value.weight[k])
        (query, is_node), (key, _), (value, _) = (to_dense_batch(t, batch) for t in (query, key, value))
        q, k_, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (query, key, value))
        z = F.scaled_dot_product_attention(q, k_, v, attn_mask=is_node[:, None, None, :])
        return F.linear(z.transpose(1, 2).flatten(2)[is_node], self.to_out.weight[k])
