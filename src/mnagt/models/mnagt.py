"""The default model: multi-neighbourhood attention through kernels that a GNN builds.

The paper allows such kernels in a sentence under its equation 7; read literally, with powers of the adjacency, its
model loses to a small GIN (results/). What differs from ``mnagt-paper``: kernel k compares nodes by the k-th layer of a
small GNN; a message-passing step takes the place of ÂX in eq. 11; BatchNorm for LayerNorm; sum for mean pooling. Edges
that carry columns (bonds) are read by both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from torch import nn

from mnagt.attention.kernels import GnnHop
from mnagt.attention.mixers import MIXERS
from mnagt.attention.multi_kernel import MultiKernelAttention, Projections
from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.models.builders import make_more_readouts
from mnagt.models.config import (
    DescriptorConfig,
    GnnTransformerConfig,
    HeadDropoutConfig,
    NormName,
    OptionalRepeats,
    Repeats,
    WLConfig,
)
from mnagt.nn.convolutions import CONVOLUTIONS, Block, convolution
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.gated_gcn import GatedGcn, GatedStack
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import ConvolutionLayer, IdentityResidual, Layer, LayerScale, SkipResidual, feed_forward
from mnagt.nn.norms import NORMS, pre_norms
from mnagt.nn.readouts import READOUTS, Concat, InputSum, Readout
from mnagt.settings import Fraction, Ge, NonNegativeFloat, NonNegativeInt, OneOf, PositiveInt


@dataclass(frozen=True)
class MnagtNetworkConfig(GnnTransformerConfig, HeadDropoutConfig):
    """Settings of the network of ``mnagt``, without WL features and random forest."""

    depth: Repeats = 3
    max_hop: OptionalRepeats = 1
    """c: kernel k compares nodes after k layers of a GNN, for k from 0 to c, so there are c + 1 kernels."""
    heads: PositiveInt = 2
    head_dim: PositiveInt = 32
    projections: Projections = "separate"
    """Query, key, value and output maps: separate for each kernel, or shared by all."""
    attention: Literal["softmax", "cosine", "linear", "none"] = "softmax"
    """Attention variant: softmax (eq. 2); cosine (QK-normalised: more stable in long trainings); linear (elu + 1
    replaces exp: for graphs too large to attend over all pairs); none (message passing and feed-forward alone)."""
    mixer: Annotated[str, OneOf(MIXERS)] = "adaptive"
    """How a node merges its kernels: adaptive, mean, sum or concat."""
    norm: NormName = "batch"
    """Normalisation before attention and feed-forward: batch, layer or none."""
    conv: Annotated[str, OneOf(("auto", "none", "gated", *CONVOLUTIONS))] = "auto"
    """Message passing: gin, gcn, gine and gcne (read edges), gated (GatedGCN beside attention: reads edges, and changes
    them layer by layer; kernels have gin or gine); auto is gine where edges carry columns, else gin. With none, the
    layer's input is added to the output of attention."""
    residual: Literal["conv", "block", "skip-block"] = "block"
    """What is added to the output of attention: a message-passing step, one with BatchNorm and ReLU after it, or the
    layer's input plus that. A gated convolution has its own form of the last."""
    eigenpairs: NonNegativeInt = 0
    """Eigenpairs of the adjacency from which each head learns a neighbourhood of its own, added to its scores; 0 for
    none."""
    degree: Repeats = 5
    """Highest degree of the Chebyshev polynomials of the adjacency that such a neighbourhood is made of: the hops that
    it reaches."""
    gate: bool = False
    """Multiply the output of attention by a gate, a sigmoid of the node's own vector, column by column."""
    layer_scale: NonNegativeFloat = 0.01
    """Initial LayerScale of attention and feed-forward; learned."""
    dropout: Fraction = 0.5
    conv_dropout: Fraction = 0.0
    """Share of the output of message passing dropped in training; a gated convolution takes ``dropout`` instead."""
    random_walk: NonNegativeInt = 0
    """Random-walk return probabilities added to the nodes, this many steps; 0 for none."""
    laplacian: NonNegativeInt = 0
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""
    ego_radius: NonNegativeInt | None = None
    """Ego-network statistics added to the nodes, up to this many hops; 0 for none. If not given: 1 where nodes have no
    features, else 0."""
    structural_counts: bool = False
    """Embeddings of each node's exact degree, core number and triangles, where nodes have no columns."""
    input_readout: bool = False
    """The head also reads the sum of the nodes' vectors before the first layer."""
    head: Literal["auto", "mlp", "linear"] = "auto"
    """From the graph's vector to outputs: an MLP with one hidden layer, or a linear map of the normalised vector; auto
    is linear where there are more outputs than dim."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conv_dropout and (self.conv in ("none", "gated") or self.residual == "conv"):
            raise InputError("conv_dropout acts on the block of a plain convolution; set it to 0")
        if self.attention == "linear" and self.attention_dropout:
            raise InputError("linear attention has no weights of pairs to drop; set attention_dropout to 0")
        if self.attention == "linear" and self.eigenpairs:
            raise InputError("linear attention has no scores to add a neighbourhood to; set eigenpairs to 0")

    def automatic(self, features: Features, outputs: int) -> dict[str, Any]:
        radius = 0 if features.nodes else 1
        return super().automatic(features, outputs) | {
            "ego_radius": radius if self.ego_radius is None else self.ego_radius,
            "head": default_head(self.dim, outputs) if self.head == "auto" else self.head,
        }


@dataclass(frozen=True)
class MnagtConfig(WLConfig, DescriptorConfig, MnagtNetworkConfig):
    """Settings of ``mnagt``.

    >>> MnagtConfig(max_hop=2).resolve(Features(), outputs=2).wl_iterations
    1
    """

    wl_iterations: NonNegativeInt | None = None
    """WL iterations whose subtree features the head reads with the readout; 0 for none. If not given: 4 where nodes
    have labels, 1 where they have no features, else 0."""
    forest_trees: NonNegativeInt = 0
    """Trees of a random forest over presence features, for each target, averaged with the network; 0 for none. Fitted
    to the training part with scikit-learn after the network."""
    forest_max_leaves: Annotated[int, Ge(2)] = 1024
    """Leaves of a tree, at most."""
    forest_weight: Fraction = 0.5
    """Weight of the forest's probabilities; the network has the rest."""


def mnagt(config: MnagtConfig, features: Features, outputs: int) -> GraphModel:
    """Multi-neighbourhood attention, GNN-built kernels, WL subtree features (the default)."""
    config = config.resolve(features, outputs)
    return make_network(config, features, outputs, make_more_readouts(config, features))


def make_network(
    config: MnagtNetworkConfig, features: Features, outputs: int, more_readouts: Sequence[Readout] = ()
) -> GraphModel:
    """The network of ``config``, which is resolved; ``more_readouts`` stand beside its own, of ``dim`` columns each."""
    assert config.head != "auto"
    more_readouts = [*([InputSum(config.dim)] if config.input_readout else []), *more_readouts]
    head = make_head(config.head, (1 + len(more_readouts)) * config.dim, config.dim, outputs, config.head_dropout)
    encoder = NodeEncoder(
        features.nodes,
        config.dim,
        random_walk=config.random_walk,
        laplacian=config.laplacian,
        ego_radius=config.ego_radius or 0,
        structural_counts=config.structural_counts,
    )
    layers = [_layer(config, features.edges, is_last=n == config.depth) for n in range(1, config.depth + 1)]
    if config.conv == "gated":
        layers = [GatedStack(layers, features.edges, config.dim)]
    readout = READOUTS[config.readout](config.dim)
    if more_readouts or config.head == "linear":  # one map of sums needs them normalised
        readout = Concat([readout, *more_readouts])
    return GraphModel(encoder, layers, readout, head, features)


def _layer(config: MnagtNetworkConfig, edges: Columns, *, is_last: bool) -> nn.Module:
    def scale() -> LayerScale:
        return LayerScale(config.dim, config.layer_scale)

    ffn = partial(feed_forward, config.dim, config.ffn * config.dim, config.dropout)
    norms = pre_norms(NORMS[config.norm], config.dim)  # has nothing to draw, unlike the others
    if config.attention == "none":
        return ConvolutionLayer(_residual(config, edges, is_last), ffn(), norms[1], scale(), config.dropout)
    kernels = [GnnHop(k) for k in range(config.max_hop + 1)]
    attention = MultiKernelAttention(
        config.dim,
        kernels,
        heads=config.heads,
        head_dim=config.head_dim,
        projections=config.projections,
        dropout=config.attention_dropout,
        variant=config.attention,
        eigenpairs=config.eigenpairs,
        degree=config.degree,
        is_gated=config.gate,
    )
    return Layer(
        attention,
        mixer=MIXERS[config.mixer](config.dim, len(kernels)),
        residual=_residual(config, edges, is_last),
        ffn=ffn(),
        norms=norms,
        scales=(scale(), scale()),
        gnn=[_block(config, edges) for _ in range(config.max_hop)],
        dropout=config.dropout,
    )


def _residual(config: MnagtNetworkConfig, edges: Columns, is_last: bool) -> nn.Module:
    if config.conv == "gated":
        return GatedGcn(config.dim, config.dropout, is_last=is_last)
    if config.conv == "none":
        return IdentityResidual()
    block = _block(config, edges, config.conv_dropout)
    return {"conv": block.conv, "block": block, "skip-block": SkipResidual(block)}[config.residual]


def _block(config: MnagtNetworkConfig, edges: Columns, dropout: float = 0.0) -> Block:
    """Message passing with BatchNorm and ReLU after it; kernels have GIN or GINE where the residual has neither."""
    name = "auto" if config.conv in ("gated", "none") else config.conv
    return Block(convolution(name, config.dim, edges), config.dim, dropout)
