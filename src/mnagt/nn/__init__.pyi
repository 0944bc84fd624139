"""The public names of ``mnagt.nn``, and the modules that they are imported from at first use."""

from mnagt.attention.biases import (
    BIASES,
    DiffusionBias,
    NonEdgeMask,
    ProximityBias,
    RandomWalkBias,
    ShortestPathBias,
)
from mnagt.attention.kernels import KERNELS, GnnHop, Hop, Hops, Kernel, SeparateGnns, Structural, Triplet
from mnagt.attention.mixers import MIXERS, Adaptive, Mixer
from mnagt.attention.mixers import Concat as ConcatMixer
from mnagt.attention.mixers import Mean as MeanMixer
from mnagt.attention.mixers import Sum as SumMixer
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.adjacency import propagate
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.nn.captured_backward import CapturedBackward
from mnagt.nn.conv import MNAGTConv
from mnagt.nn.convolutions import CONVOLUTIONS, GAT, GCN, GCNE, GIN, GINE, SAGE, Block
from mnagt.nn.encoders import NodeEncoder
from mnagt.nn.graph_model import GraphModel, make_head
from mnagt.nn.graph_transformer import GraphTransformer
from mnagt.nn.layer import IdentityResidual, Layer, LayerScale, PostNormLayer, PropagatedResidual, feed_forward
from mnagt.nn.neighborhood_attention import AttentionWeights, MultiNeighborhoodAttention, attend
from mnagt.nn.norms import NORMS, BatchNorm, LayerNorm, NoNorm, Norm
from mnagt.nn.readouts import READOUTS, ClsNode, Readout, SumMeanMax, VirtualNode
from mnagt.nn.readouts import Attention as AttentionReadout
from mnagt.nn.readouts import Concat as ConcatReadout
from mnagt.nn.readouts import Max as MaxReadout
from mnagt.nn.readouts import Mean as MeanReadout
from mnagt.nn.readouts import Sum as SumReadout

__all__ = [
    "BIASES",
    "CONVOLUTIONS",
    "GAT",
    "GCN",
    "GCNE",
    "GIN",
    "GINE",
    "KERNELS",
    "MIXERS",
    "NORMS",
    "READOUTS",
    "SAGE",
    "Adaptive",
    "AttentionReadout",
    "AttentionWeights",
    "BatchNorm",
    "Block",
    "CapturedBackward",
    "ClsNode",
    "Columns",
    "ConcatMixer",
    "ConcatReadout",
    "DiffusionBias",
    "Features",
    "GnnHop",
    "GraphBatch",
    "GraphModel",
    "GraphTransformer",
    "Hop",
    "Hops",
    "IdentityResidual",
    "Kernel",
    "Layer",
    "LayerNorm",
    "LayerScale",
    "MNAGTConv",
    "MaxReadout",
    "MeanMixer",
    "MeanReadout",
    "Mixer",
    "MultiKernelAttention",
    "MultiNeighborhoodAttention",
    "NoNorm",
    "NodeEncoder",
    "NonEdgeMask",
    "Norm",
    "PostNormLayer",
    "PropagatedResidual",
    "ProximityBias",
    "RandomWalkBias",
    "Readout",
    "SeparateGnns",
    "ShortestPathBias",
    "Structural",
    "SumMeanMax",
    "SumMixer",
    "SumReadout",
    "Triplet",
    "VirtualNode",
    "attend",
    "feed_forward",
    "make_head",
    "propagate",
]
