"""Every model by name. To add one: a file named after it, and a line here."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mnagt.graphs.features import Features
from mnagt.models.gat import GatConfig, gat
from mnagt.models.gcn import GcnConfig, gcn
from mnagt.models.gin import GinConfig, gin
from mnagt.models.gophormer import GophormerConfig, gophormer
from mnagt.models.gps import GpsConfig, gps
from mnagt.models.graphit import GraphitConfig, graphit
from mnagt.models.graphormer import GraphormerConfig, graphormer
from mnagt.models.graphtrans import GraphTransConfig, graphtrans
from mnagt.models.grover import GroverConfig, grover
from mnagt.models.grpe import GrpeConfig, grpe
from mnagt.models.gt import GtConfig, gt
from mnagt.models.mnagt import MnagtConfig, mnagt
from mnagt.models.mnagt_paper import PaperConfig, mnagt_paper
from mnagt.models.sage import SageConfig, sage
from mnagt.models.sagpool import SagPoolConfig, sagpool
from mnagt.models.san import SanConfig, san
from mnagt.models.sat import SatConfig, sat
from mnagt.models.set2set import Set2SetConfig, set2set
from mnagt.models.sortpool import SortPoolConfig, sortpool
from mnagt.models.transformer import TransformerConfig, transformer
from mnagt.models.virtual_node import VirtualConfig, gcn_virtual, gin_virtual
from mnagt.nn.convolutions import resolve_convolution
from mnagt.nn.graph_model import GraphModel
from mnagt.registry import lookup
from mnagt.settings import from_dict


@dataclass(frozen=True)
class Entry:
    """A model: its settings, and the function that builds it from them."""

    config: type
    build: Callable[[Any, Features, int], GraphModel]
    family: str
    paper: str
    summary: str


MODELS: dict[str, Entry] = {
    "mnagt": Entry(
        MnagtConfig,
        mnagt,
        "transformer",
        "here",
        "multi-neighbourhood attention, GNN-built kernels, WL subtree features (the default)",
    ),
    "mnagt-paper": Entry(PaperConfig, mnagt_paper, "transformer", "MNA-GT", "MNA-GT as printed, equations 1 to 12"),
    "transformer": Entry(
        TransformerConfig, transformer, "transformer", "Vaswani 2017", "attention over nodes, blind to edges"
    ),
    "gt": Entry(
        GtConfig,
        gt,
        "transformer",
        "Dwivedi 2020",
        "attention along edges, edge features in the score, Laplacian encodings",
    ),
    "graphtrans": Entry(
        GraphTransConfig, graphtrans, "transformer", "Wu 2021", "a GNN, then a transformer with a CLS node"
    ),
    "sat": Entry(
        SatConfig, sat, "transformer", "Chen 2022", "k-subtree SAT: nodes compared by the subtrees around them"
    ),
    "graphormer": Entry(
        GraphormerConfig, graphormer, "transformer", "Ying 2021", "degrees, shortest paths and the edges along them"
    ),
    "gps": Entry(GpsConfig, gps, "transformer", "Rampášek 2022", "message passing and attention side by side"),
    "graphit": Entry(
        GraphitConfig,
        graphit,
        "transformer",
        "Mialon 2021",
        "attention weighed by a diffusion or random-walk kernel on the graph",
    ),
    "grpe": Entry(
        GrpeConfig,
        grpe,
        "transformer",
        "Park 2022",
        "relative encodings of shortest paths and edges on queries, keys and values",
    ),
    "grover": Entry(
        GroverConfig,
        grover,
        "transformer",
        "Rong 2020",
        "GTransformer blocks: message passing of random length makes queries, keys and values",
    ),
    "gophormer": Entry(
        GophormerConfig,
        gophormer,
        "transformer",
        "Zhao 2021",
        "proximity-enhanced attention, M powers of the adjacency, on whole graphs",
    ),
    "san": Entry(
        SanConfig,
        san,
        "transformer",
        "Kreuzer 2021",
        "encodings learned from the Laplacian spectrum; real and virtual edges told apart",
    ),
    "gcn": Entry(GcnConfig, gcn, "gnn", "Kipf 2017", "averages over neighbours"),
    "gat": Entry(GatConfig, gat, "gnn", "Veličković 2018", "neighbours weighed by learned scores"),
    "sage": Entry(SageConfig, sage, "gnn", "Hamilton 2017", "each node beside the mean of its neighbours"),
    "gin": Entry(GinConfig, gin, "gnn", "Xu 2019", "sums over neighbours through small networks"),
    "gcn-virtual": Entry(VirtualConfig, gcn_virtual, "gnn", "Hu 2020", "GCN with a virtual node (the OGB kind)"),
    "gin-virtual": Entry(VirtualConfig, gin_virtual, "gnn", "Hu 2020", "GIN with a virtual node (the OGB kind)"),
    "set2set": Entry(Set2SetConfig, set2set, "pooling", "Vinyals 2016", "GIN read by an LSTM that asks the nodes"),
    "sortpool": Entry(SortPoolConfig, sortpool, "pooling", "Zhang 2018", "DGCNN: nodes sorted, then 1-D convolutions"),
    "sagpool": Entry(SagPoolConfig, sagpool, "pooling", "Lee 2019", "hierarchical self-attention pooling"),
}


def full_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The model's settings with its defaults written out: what is kept must not change when a default does."""
    return asdict(from_dict(lookup(MODELS, name, "model").config, settings, where=f"model {name}"))


def resolve_settings(name: str, settings: Mapping[str, Any], features: Features, outputs: int) -> dict[str, Any]:
    """As ``full_settings``, with values in place of 'auto' and None, for graphs with these features."""
    return asdict(_resolve(name, settings, features, outputs))


def _resolve(name: str, settings: Mapping[str, Any], features: Features, outputs: int) -> Any:
    config = from_dict(lookup(MODELS, name, "model").config, settings, where=f"model {name}")
    if hasattr(config, "conv"):
        config = replace(config, conv=resolve_convolution(config.conv, features.edges))
    return config.resolve(features, outputs) if isinstance(config, MnagtConfig) else config


def build_model(name: str, settings: Mapping[str, Any], features: Features, outputs: int) -> GraphModel:
    """A model with fresh weights.

    Args:
        name: A name in ``MODELS``.
        settings: Those that differ from the model's defaults.
        features: The columns of nodes and edges that it reads; ``dataset.features``.
        outputs: Columns of its output; ``dataset.task.num_outputs``.

    Returns:
        A module from a ``GraphBatch`` to a tensor of shape [graphs, outputs].

    >>> import torch
    >>> from mnagt import build_model, load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> model = build_model("gin", {"dim": 32}, dataset.features, dataset.task.num_outputs)
    >>> model(dataset.batch(torch.tensor([0, 1, 2]))).shape
    torch.Size([3, 2])
    """
    entry, config = lookup(MODELS, name, "model"), _resolve(name, settings, features, outputs)
    return entry.build(config, features, outputs)
