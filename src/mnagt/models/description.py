"""The parts of a built model on the axes of a transformer layer: kernels, mixer, bias, residual."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from mnagt.attention.biases import BIASES
from mnagt.attention.kernels import Kernel
from mnagt.attention.mixers import MIXERS
from mnagt.attention.multi_kernel import MultiKernelAttention
from mnagt.graphs.modules import GraphModule
from mnagt.nn.convolutions import Block
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.layer import IdentityResidual, PropagatedResidual, SkipResidual


class Parts(NamedTuple):
    """One layer; '-' where it has no such part."""

    kernels: str
    mixer: str
    bias: str
    residual: str


def describe_parts(model: GraphModel) -> Parts | None:
    """The parts of the model's first :class:`Layer`; None for a model without one, which has a stack of its own.

    >>> from mnagt.graphs.features import Features
    >>> from mnagt.models.registry import build_model
    >>> describe_parts(build_model("mnagt-paper", {"max_hop": 1}, Features(), 1))
    Parts(kernels='Hop(0), Hop(1)', mixer='adaptive', bias='-', residual='ÂX')
    """
    if not model.transformer_layers:
        return None
    layer = model.transformer_layers[0]
    attention = layer.attention
    kernels = ", ".join(kernel.describe() for kernel in attention.kernels if isinstance(kernel, Kernel))
    if type(attention) is not MultiKernelAttention:
        kernels = f"{kernels} in {type(attention).__name__}"
    mixer = _find_name(MIXERS, layer.mixer) if len(attention.kernels) > 1 else "-"
    bias = "-" if attention.bias is None else _find_name(BIASES, attention.bias)
    return Parts(kernels, mixer, bias, _describe_residual(layer.residual))


def _find_name(table: Mapping[str, type[nn.Module]], part: nn.Module) -> str:
    """The part's name in its table, or that of its class."""
    return next((name for name, entry in table.items() if type(part) is entry), type(part).__name__)


def _describe_residual(residual: nn.Module) -> str:
    match residual:
        case IdentityResidual():
            return "X"
        case PropagatedResidual():
            return "ÂX"
        case Block():
            return f"{type(residual.conv).__name__} block"
        case SkipResidual():
            return f"X + {_describe_residual(residual.conv)}"
        case GraphModule():
            return type(residual.module).__name__
        case _:
            return type(residual).__name__
