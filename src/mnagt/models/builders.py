"""What models share: the frame around their layers, and transformer layers with one kernel."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from mnagt.attention.kernels import Kernel
from mnagt.attention.mixers import Mean
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import COMPUTED_DESCRIPTORS, are_molecules, count_components
from mnagt.models.config import (
    AttentionDropoutConfig,
    DescriptorConfig,
    ModelConfig,
    ReadoutConfig,
    TransformerLayerConfig,
    WidthConfig,
    WLConfig,
)
from mnagt.nn.convolutions import Block
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, default_head, make_head
from mnagt.nn.layer import IdentityResidual, Layer, PostNormLayer, feed_forward
from mnagt.nn.molecule_descriptors import MoleculeDescriptors
from mnagt.nn.norms import LayerNorm, Norm, pre_norms
from mnagt.nn.readouts import READOUTS, Concat, Readout
from mnagt.nn.wl_features import WLFeatures


def make_model(
    config: ModelConfig,
    features: Features,
    outputs: int,
    layers: Iterable[nn.Module],
    *,
    encoder: NodeEncoder | None = None,
    readout: Readout | None = None,
    head_dropout: float = 0.0,
) -> GraphModel:
    """A model of these layers, with the default head.

    ``encoder`` replaces an encoder of the nodes' columns, ``readout`` the one that ``config`` names. ``layers`` are
    modules from (x, graph) to x; a generator makes them after the encoder. What ``config`` asks for beside the readout
    (``make_more_readouts``) stands there.

    >>> from mnagt.nn.convolutions import GIN
    >>> make_model(ReadoutConfig(dim=8, readout="mean"), Features(), 3, [GIN(8)]).readout
    Mean()
    """
    encoder = NodeEncoder(features.nodes, config.dim) if encoder is None else encoder
    layers = list(layers)
    if readout is None:
        assert isinstance(config, ReadoutConfig)
        readout = READOUTS[config.readout](config.dim)
    if more_readouts := make_more_readouts(config, features):
        readout = Concat([readout, *more_readouts])
    head = make_head(default_head(config.dim, outputs), readout.dim, config.dim, outputs, head_dropout)
    return GraphModel(encoder, layers, readout, head, features)


def make_more_readouts(config: WidthConfig, features: Features) -> list[Readout]:
    """The readouts that ``config`` asks for beside that of the nodes: WL subtree features, descriptors."""
    readouts: list[Readout] = []
    if isinstance(config, WLConfig) and config.wl_iterations:
        readouts.append(make_wl_features(config))
    if isinstance(config, DescriptorConfig) and config.descriptors:
        computed = [name for name in config.descriptors if name in COMPUTED_DESCRIPTORS]
        if computed and not are_molecules(features):
            raise InputError(
                f"RDKit computes {computed[0]} of molecules, with the columns that SMILES and OGB's molecules have, "
                "and these graphs have others; leave out --descriptors"
            )
        count = count_components(features)
        readouts.append(MoleculeDescriptors(config.dim, config.descriptors, config.descriptor_dropout, count))
    return readouts


def make_wl_features(config: WLConfig) -> WLFeatures:
    """The WL subtree features that ``config`` asks for.

    >>> make_wl_features(WLConfig(dim=8, wl_iterations=3)).encodings
    {'wl-colours': 3}
    """
    assert config.wl_iterations
    return WLFeatures(
        config.dim,
        config.wl_iterations,
        vocabulary_size=config.wl_vocabulary_size,
        dropout=config.wl_dropout,
        min_graphs=config.wl_min_graphs,
    )


def make_attention(
    config: TransformerLayerConfig,
    kernels: Sequence[Kernel],
    attention: type[MultiKernelAttention] = MultiKernelAttention,
    **others: Any,
) -> MultiKernelAttention:
    """Attention through ``kernels`` with the heads and the dropout of ``config``; ``others`` are further arguments.

    >>> from mnagt.attention.kernels import Hop
    >>> make_attention(TransformerLayerConfig(dim=8), [Hop(0)]).heads
    4
    """
    dropout = config.attention_dropout if isinstance(config, AttentionDropoutConfig) else 0.0
    return attention(config.dim, kernels, heads=config.heads, head_dim=config.head_dim, dropout=dropout, **others)


def make_blocks(config: ModelConfig, conv: Callable[[], nn.Module]) -> Iterator[Block]:
    """Layers of a GNN: as many as ``config`` says, each with a convolution that ``conv`` makes."""
    return (Block(conv(), config.dim, config.dropout) for _ in range(config.depth))


def make_layer(
    config: TransformerLayerConfig,
    attention: MultiKernelAttention,
    norm: type[Norm] = LayerNorm,
    *,
    is_post_norm: bool = False,
) -> Layer:
    """A layer with one kernel and residual X. Post-norm layers have ReLU, as the original Transformer; others GELU.

    >>> from mnagt.attention.kernels import Hop
    >>> config = TransformerLayerConfig(dim=8)
    >>> make_layer(config, make_attention(config, [Hop(0)])).ffn[1]
    GELU(approximate='none')
    """
    layer, activation = (PostNormLayer, nn.ReLU) if is_post_norm else (Layer, nn.GELU)
    return layer(
        attention,
        mixer=Mean(config.dim, 1),
        residual=IdentityResidual(),
        ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout, activation),
        norms=(norm(config.dim), norm(config.dim)) if is_post_norm else pre_norms(norm, config.dim),
        dropout=config.dropout,
    )
