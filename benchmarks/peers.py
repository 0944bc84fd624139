"""The graph transformers that people write today, over PyTorch Geometric's batches, to time ours against.

``Padded`` is our default model itself, parameter by parameter, written as GraphGPS and its kin write theirs. The others
are the published designs at the same width, depth, heads and head, as their public code has them:

- ``Gps``: PyTorch Geometric's ``GPSConv`` around a ``GINConv`` (Rampášek et al., 2022);
- ``GraphTrans``: a GIN, then PyTorch's own ``TransformerEncoder`` with a CLS token (Wu et al., 2021), padded by
  ``to_dense_batch`` where its authors loop over the graphs;
- ``Sat``: queries and keys from a GNN, softmax by scatter over all pairs of each graph's nodes (Chen et al., 2022);
- ``Gin``: no transformer but a plain GIN, so wide that it has as many weights as ours without its table of subtrees;
- ``Products``: no model but the floor: as many products of nodes and weights as ours has, one after another.

Ours attends through three kernels a layer and takes three message-passing steps; the transformers attend once, after
one step (``Sat``: two), count no subtrees, and are that much smaller. Nothing is dropped but ours' subtrees, as
by default: PyTorch then has its fused attention to offer.

Nodes carry what our models read: one-hot labels where there are labels (as ``TUDataset`` keeps them), else their
degree as a number for an embedding, which is leaner than the 492 one-hot columns that COLLAB would need.
"""

import warnings
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnagt.attention.mixers import Adaptive
from mnagt.data.packed import PackedDataset
from mnagt.graphs.convert import to_pyg
from mnagt.nn.convolutions import GIN, Block
from mnagt.nn.graph_model import GraphModel, make_head
from mnagt.nn.layer import Layer, LayerScale
from mnagt.nn.norms import BatchNorm
from mnagt.nn.readouts import Concat, Sum
from mnagt.nn.wl_features import WLFeatures

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, at import
    from torch_geometric.data import Data
    from torch_geometric.nn import GINConv, GPSConv, MessagePassing, global_add_pool
    from torch_geometric.utils import softmax, to_dense_batch

DIM, DEPTH, HEADS, MAX_HOP = 64, 4, 2, 2
GIN_DIM = 208
DEGREES = 513
"""Embeddings of degrees, as ours."""


def pyg_list(dataset: PackedDataset, graphs: Tensor | None = None, extra: tuple[str, ...] = ()) -> list[Data]:
    """The graphs (all, or those of these numbers) as PyTorch Geometric keeps them.

    ``extra`` names what a model ``reads`` beyond labels and edges, worked out beforehand: encodings of the data set,
    or all pairs of nodes as ``complete_edge_index``.
    """
    batch = dataset.batch(torch.arange(len(dataset)) if graphs is None else graphs)
    labels, sizes = dataset.features.nodes.labels, batch.sizes.tolist()
    some = cast(list[Any], to_pyg(batch).to_data_list())
    for graph, degree in zip(some, batch.in_degree.long().split(sizes), strict=True):
        graph.x = F.one_hot(graph.x[:, 0].long(), labels[0]).float() if labels else degree
    for name in batch.encodings.keys() & extra:
        for graph, rows in zip(some, batch.encodings[name].split(sizes), strict=True):
            graph[name] = rows
    if "complete_edge_index" in extra:
        for graph, size in zip(some, sizes, strict=True):
            node = torch.arange(size)
            graph.complete_edge_index = torch.stack([node.repeat(size), node.repeat_interleave(size)])
    return some


def encoder(labels: int, dim: int = DIM) -> nn.Module:
    """Vectors from one-hot labels, or from degrees where there are none."""
    return nn.Linear(labels, dim) if labels else nn.Embedding(DEGREES, dim)


def gin_conv(dim: int = DIM) -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim)))


class Padded(nn.Module):
    """Our default model with scatter, padding and a mask, in plain PyTorch around the very parameters of ``model``."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.reads = tuple(model.encodings)
        readout, wl_features = model.readout, None
        if isinstance(readout, Concat):
            readout, wl_features = readout.parts
        if not isinstance(readout, Sum):
            raise TypeError(f"the twin pools by sum, and the model by {type(readout).__name__}")
        columns, degree, ego = model.encoder.columns, model.encoder.degree, model.encoder.ego_statistics
        labels = columns.labels if columns is not None else degree
        assert labels is not None
        self.table = labels.table
        self.ego = None if ego is None else nn.Sequential(plain(ego.standardise), plain(ego.project))
        self.counted = Counted(wl_features) if isinstance(wl_features, WLFeatures) else None
        self.layers = nn.ModuleList(PaddedLayer(cast(Layer, layer)) for layer in model.layers)
        self.norm = plain(model.readout.norm) if isinstance(model.readout, Concat) else None
        self.head = plain(model.head)

    def forward(self, data: Any) -> Tensor:
        if data.x.is_floating_point():
            x = data.x.to(self.table.weight.dtype) @ self.table.weight[1:]  # the first row is that of no label
        else:
            x = self.table(data.x.clamp(max=self.table.num_embeddings - 1))
        if self.ego is not None:
            x = x + self.ego(data["ego-statistics"].to(x.dtype))
        for layer in self.layers:
            x = layer(x, data.edge_index, data.batch)
        parts = [x] if self.counted is None else [x, self.counted(data["wl-colours"])]
        pooled = torch.cat([global_add_pool(part, data.batch, data.num_graphs) for part in parts], dim=1)
        return self.head(pooled if self.norm is None else self.norm(pooled))


class Counted(nn.Module):
    """Our table of subtrees, before any are chosen."""

    def __init__(self, features: WLFeatures) -> None:
        super().__init__()
        self.table, self.dropout = features.table, features.dropout
        self.rounds, self.rows = features.iterations, features.vocabulary_size

    def forward(self, names: Tensor) -> Tensor:
        vectors = self.table(names.long() % self.rows + self.rows * torch.arange(self.rounds, device=names.device))
        if self.training and self.dropout:
            stays = torch.rand(names.shape, device=names.device) >= self.dropout
            vectors = vectors * (stays / (1 - self.dropout))[:, :, None].to(vectors.dtype)
        return vectors.sum(dim=1)


class PaddedLayer(nn.Module):
    """Our layer, one attention call for each kernel."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        attention, mixer = layer.attention, layer.mixer
        assert isinstance(mixer, Adaptive)
        self.to_query, self.to_key, self.to_value = attention.to_query, attention.to_key, attention.to_value
        self.to_out, self.heads = attention.to_out, attention.heads
        self.norm_attention, self.norm_ffn = plain(layer.norm_attention), plain(layer.norm_ffn)
        self.scale_attention, self.scale_ffn = (
            cast(LayerScale, scale).factor for scale in (layer.scale_attention, layer.scale_ffn)
        )
        self.project, self.score, self.ffn = plain(mixer.project), plain(mixer.score), plain(layer.ffn)
        self.gnn = nn.ModuleList(PaddedConv(cast(Block, block)) for block in layer.gnn)
        self.residual = PaddedConv(cast(Block, layer.residual))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        hops = [self.norm_attention(x)]
        for conv in self.gnn:
            hops.append(conv(hops[-1], edge_index))
        z = torch.stack([self.attend(k, h, hops[0], batch) for k, h in enumerate(hops)], dim=1)
        z = (self.score(torch.tanh(self.project(z))).softmax(dim=1) * z).sum(dim=1)
        x = self.scale_attention * z + self.residual(x, edge_index)
        return self.scale_ffn * self.ffn(self.norm_ffn(x)) + x

    def attend(self, k: int, h: Tensor, x: Tensor, batch: Tensor) -> Tensor:
        """What kernel ``k`` brings. Projecting first and padding then is the faster order: fewer rows to project."""
        query, key = F.linear(h, self.to_query.weight[k]), F.linear(h, self.to_key.weight[k])
        value = F.linear(x, self.to_value.weight[k])
        (query, is_node), (key, _), (value, _) = (to_dense_batch(t, batch) for t in (query, key, value))
        parts = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (query, key, value))
        z = F.scaled_dot_product_attention(*parts, attn_mask=is_node[:, None, None, :])
        return F.linear(z.transpose(1, 2).flatten(2)[is_node], self.to_out.weight[k])


class PaddedConv(nn.Module):
    """A step of message passing by ``GINConv``, with BatchNorm and ReLU after it."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        assert isinstance(block.conv, GIN)
        mlp = block.conv.mlp
        self.conv = GINConv(nn.Identity())
        # given to the constructor, its weights would be drawn anew
        self.conv.nn = nn.Sequential(plain(mlp.first), plain(mlp.norm), plain(mlp.second))
        self.norm = plain(block.norm)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index))


def plain(module: nn.Module | None) -> nn.Module:
    """PyTorch's own module in place of ours, around the same parameters and statistics."""
    if isinstance(module, nn.Sequential):
        return nn.Sequential(*(plain(part) for part in module))
    if isinstance(module, nn.Linear):
        linear = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
        linear.weight, linear.bias = module.weight, module.bias
        return linear
    if isinstance(module, BatchNorm):
        has_scale = module.weight is not None
        norm = nn.BatchNorm1d(len(module.running_mean), eps=module.eps, momentum=module.momentum, affine=has_scale)
        if has_scale:
            norm.weight, norm.bias = cast(nn.Parameter, module.weight), cast(nn.Parameter, module.bias)
        norm.running_mean, norm.running_var = module.running_mean, module.running_var
        return nn.Sequential(norm, nn.ReLU()) if module.relu else norm
    assert isinstance(module, (nn.GELU, nn.ReLU, nn.Dropout)), f"no plain twin of {type(module).__name__}"
    return module


class Gps(nn.Module):
    """``GPSConv`` after ``GPSConv``, as in PyTorch Geometric's example."""

    reads = ()

    def __init__(self, labels: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder(labels)
        self.layers = nn.ModuleList(GPSConv(DIM, gin_conv(), heads=HEADS, attn_type="multihead") for _ in range(DEPTH))
        self.head = plain(make_head("mlp", DIM, DIM, outputs))

    def forward(self, data: Any) -> Tensor:
        x = self.encoder(data.x)
        for layer in self.layers:
            x = layer(x, data.edge_index, data.batch)
        return self.head(global_add_pool(x, data.batch, data.num_graphs))


class GraphTrans(nn.Module):
    """A GNN makes tokens of the nodes, a Transformer reads them, and its CLS token answers."""

    reads = ()

    def __init__(self, labels: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder(labels)
        self.gnn = nn.ModuleList(gin_conv() for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(DIM) for _ in range(DEPTH))
        self.to_token = nn.Linear(DIM, DIM)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout=0.0, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, DEPTH, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.head = plain(make_head("mlp", DIM, DIM, outputs))

    def forward(self, data: Any) -> Tensor:
        x = self.encoder(data.x)
        for conv, norm in zip(self.gnn, self.norms, strict=True):
            x = norm(conv(x, data.edge_index)).relu()
        tokens, is_node = to_dense_batch(self.to_token(x), data.batch)
        tokens = torch.cat([self.cls.expand(len(tokens), -1, -1), tokens], dim=1)
        is_token = F.pad(is_node, (1, 0), value=True)
        return self.head(self.transformer(tokens, src_key_padding_mask=~is_token)[:, 0])


class Sat(nn.Module):
    """Attention that compares nodes by the subtrees around them, over an edge for every pair of nodes."""

    reads = ("complete_edge_index",)

    def __init__(self, labels: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder(labels)
        self.layers = nn.ModuleList(SatLayer() for _ in range(DEPTH))
        self.head = plain(make_head("mlp", DIM, DIM, outputs))

    def forward(self, data: Any) -> Tensor:
        x = self.encoder(data.x)
        for layer in self.layers:
            x = layer(x, data.edge_index, data.complete_edge_index)
        return self.head(global_add_pool(x, data.batch, data.num_graphs))


class SatLayer(nn.Module):
    """Structure-aware attention and a feed-forward network, each with a residual and BatchNorm after it."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor = StructureExtractor(hops=2)
        self.to_query_key, self.to_value = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.attention, self.to_out = PairAttention(), nn.Linear(DIM, DIM)
        self.ffn = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.norm_attention, self.norm_ffn = nn.BatchNorm1d(DIM), nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        query, key = self.to_query_key(self.extractor(x, edge_index)).chunk(2, dim=-1)
        query, key, value = (t.unflatten(1, (HEADS, -1)) for t in (query, key, self.to_value(x)))
        x = self.norm_attention(x + self.to_out(self.attention(query, key, value, pairs)))
        return self.norm_ffn(x + self.ffn(x))


class StructureExtractor(nn.Module):
    """What each of a few GIN steps makes of the nodes, side by side, normalised and brought back to one width."""

    def __init__(self, hops: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM)), train_eps=True)
            for _ in range(hops)
        )
        self.norm, self.project = nn.BatchNorm1d((hops + 1) * DIM), nn.Linear((hops + 1) * DIM, DIM)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hops = [x]
        for conv in self.convs:
            hops.append(conv(hops[-1], edge_index).relu())
        return self.project(self.norm(torch.cat(hops, dim=1)))


class PairAttention(MessagePassing):
    """Each pair of nodes is an edge; its message is the value, times its share of the scores at the edge's end."""

    def __init__(self) -> None:
        super().__init__(node_dim=0, aggr="add")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pairs: Tensor) -> Tensor:
        return self.propagate(pairs, query=query, key=key, value=value).flatten(1)

    def message(  # type: ignore[override]
        self, query_i: Tensor, key_j: Tensor, value_j: Tensor, index: Tensor, size_i: Any
    ) -> Tensor:
        score = (query_i * key_j).sum(dim=-1) * query_i.shape[-1] ** -0.5
        return softmax(score, index, num_nodes=size_i)[..., None] * value_j


class Gin(nn.Module):
    """``GINConv`` after ``GINConv``, each with BatchNorm and ReLU after it."""

    reads = ()

    def __init__(self, labels: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder(labels, GIN_DIM)
        self.convs = nn.ModuleList(gin_conv(GIN_DIM) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(GIN_DIM) for _ in range(DEPTH))
        self.head = plain(make_head("mlp", GIN_DIM, GIN_DIM, outputs))

    def forward(self, data: Any) -> Tensor:
        x = self.encoder(data.x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, data.edge_index)).relu()
        return self.head(global_add_pool(x, data.batch, data.num_graphs))


class Products(nn.Module):
    """The linear maps of our layers, each from ``DIM`` to ``DIM`` columns, with nothing between them."""

    reads = ()

    def __init__(self, labels: int, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder(labels), nn.Linear(DIM, outputs)
        kernels, convolutions, ffn = MAX_HOP + 1, MAX_HOP + 1, 4
        maps = 5 * kernels + 2 * convolutions + ffn  # query, key, value, output and mixer; the two of a GIN
        self.maps = nn.Sequential(*(nn.Linear(DIM, DIM, bias=False) for _ in range(DEPTH * maps)))
        for each in self.maps.parameters():
            nn.init.orthogonal_(each)  # else numbers vanish, and tiny ones are slow

    def forward(self, data: Any) -> Tensor:
        return self.head(global_add_pool(self.maps(self.encoder(data.x)), data.batch, data.num_graphs))


PEERS: dict[str, type[Gps | GraphTrans | Sat | Gin | Products]] = {
    "gps": Gps,
    "graphtrans": GraphTrans,
    "sat": Sat,
    "gin": Gin,
    "products": Products,
}
"""Each is built from the number of node labels and of outputs."""
