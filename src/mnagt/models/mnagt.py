"""The default model: multi-neighbourhood attention through kernels that a GNN builds.

The paper allows such kernels in a sentence under its equation 7; read literally, with powers of the adjacency, its
model loses to a small GIN (results/). What differs from ``mnagt-paper``: kernel k compares nodes by the k-th layer of a
small GNN; a message-passing step takes the place of ÂX in eq. 11; BatchNorm for LayerNorm; sum for mean pooling. Edges
that carry columns (bonds) are read by both.
"""

from dataclasses import dataclass
from typing import Literal

from mnagt.attention.kernels import GnnHop
from mnagt.attention.mixers import MIXERS
from mnagt.attention.multi_kernel import MultiKernelAttention, Projections, Shares
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.convolutions import CONVOLUTIONS, Block, convolution
from mnagt.models.encoders import NodeEncoder
from mnagt.models.forest import Forest
from mnagt.models.graph_model import GraphModel, head
from mnagt.models.layer import Layer, Scale, feed_forward
from mnagt.models.norms import NORMS
from mnagt.models.readouts import READOUTS
from mnagt.models.subtrees import Subtrees
from mnagt.registry import lookup
from mnagt.settings import at_least, below, literals, one_of


@dataclass(frozen=True)
class MnagtConfig:
    dim: int = 64
    """Width of node vectors."""
    depth: int = 3
    """Layers."""
    max_hop: int = 1
    """c: kernels see what 0 to c layers of a GNN make of the nodes, so there are c + 1 of them."""
    heads: int = 2
    """Heads of each kernel."""
    head_dim: int = 32
    """Width of a head; heads need not divide the width of nodes."""
    conv: str = "auto"
    """Message passing in kernels and residual: gin, gcn, gine and gcne (read edges); auto is gine where edges carry
    columns."""
    projections: Projections = "separate"
    """Query, key, value and output maps: separate for each kernel, or shared by all."""
    attention: Shares = "softmax"
    """How nodes share their attention: softmax (eq. 2); cosine (the same of angles alone: steadier in long trainings);
    or linear (another model: elu + 1 in place of exp, for graphs of more nodes than can be compared pair by pair)."""
    mixer: str = "adaptive"
    """How a node merges its kernels: adaptive, mean, sum or concat."""
    norm: str = "batch"
    """Normalisation before attention and feed-forward: batch, layer or none."""
    ffn: int = 2
    """Width of the feed-forward network, in widths of a node."""
    residual: Literal["conv", "block"] = "block"
    """What stands beside attention: a message-passing step, or one with BatchNorm and ReLU after it."""
    scale: float = 0.01
    """What attention and feed-forward are multiplied by at first; learned."""
    readout: str = "sum"
    """From nodes to a graph: sum, mean, max, joined (all three), attention, virtual or cls."""
    dropout: float = 0.5
    """Share of a branch's output dropped in training."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped in training (slower on a CPU, whose fused kernels do without)."""
    random_walk: int = 0
    """Random-walk return probabilities added to the nodes, this many steps; 0 for none."""
    laplacian: int = 0
    """Laplacian eigenvectors added to the nodes, this many; 0 for none."""
    balls: int | None = None
    """Size, density and twins of each node's surroundings added to the nodes, up to so many edges away; 0 for none.
    If not given: 1 where nodes carry nothing, else 0."""
    subtrees: int | None = None
    """Rounds of Weisfeiler and Leman whose subtrees are counted beside the readout; 0 for none. If not given: 4 where
    nodes carry labels, 1 (neighbours, and edges among them) where they carry nothing, else 0."""
    subtree_rows: int = 8192
    """Subtrees of each round that are counted, at most: those that most training graphs have."""
    subtree_graphs: int = 2
    """Training graphs that must have a subtree for it to count."""
    subtree_dropout: float = 0.6
    """Share of subtrees left out in training."""
    head_dropout: float = 0.0
    """Share of the head's hidden units dropped in training."""
    trees: int = 0
    """Trees of a random forest over subtrees, for each answer, that is asked beside the network; 0 for none. Grown
    with scikit-learn, from the training part, once the network has learned."""
    leaves: int = 1024
    """Leaves of a tree, at most."""
    forest_share: float = 0.5
    """How much the forest counts in the answer; the rest is the network's."""

    def __post_init__(self) -> None:
        dropouts = ("dropout", "attention_dropout", "subtree_dropout", "head_dropout")
        at_least(self, 1, "dim", "depth", "heads", "head_dim", "ffn", "subtree_rows", "subtree_graphs")
        at_least(self, 2, "leaves")
        at_least(self, 0, "max_hop", "scale", "random_walk", "laplacian", "trees", "forest_share", *dropouts)
        at_least(self, 0, *(name for name in ("balls", "subtrees") if getattr(self, name) is not None))
        below(self, 1, "forest_share", *dropouts)
        one_of(self, conv={"auto", *CONVOLUTIONS}, mixer=MIXERS, norm=NORMS, readout=READOUTS)
        literals(self)
        if self.attention == "linear" and self.attention_dropout:
            raise InputError("linear attention has no weights of pairs to drop; set attention_dropout to 0")


def mnagt(config: MnagtConfig, features: Features, outputs: int) -> GraphModel:
    """Every layer compares nodes by what 0 to c GNN layers see, and keeps a message-passing step beside it."""

    def conv() -> Block:
        return Block(convolution(config.conv, config.dim, features.edges), config.dim)

    def layer() -> Layer:
        kernels = [GnnHop(k) for k in range(config.max_hop + 1)]
        attention = MultiKernelAttention(
            config.dim,
            kernels,
            heads=config.heads,
            head_dim=config.head_dim,
            projections=config.projections,
            dropout=config.attention_dropout,
            shares=config.attention,
        )
        norm = lookup(NORMS, config.norm, "norm")
        return Layer(
            attention,
            mixer=lookup(MIXERS, config.mixer, "mixer")(config.dim, len(kernels)),
            residual=conv() if config.residual == "block" else conv().conv,
            ffn=feed_forward(config.dim, config.ffn * config.dim, config.dropout),
            norms=(norm(config.dim), norm(config.dim)),
            scales=(Scale(config.dim, config.scale), Scale(config.dim, config.scale)),
            gnn=[conv() for _ in range(config.max_hop)],
            dropout=config.dropout,
        )

    known = 4 if features.nodes.labels else 0 if features.nodes else 1
    rounds = known if config.subtrees is None else config.subtrees
    radius = (0 if features.nodes else 1) if config.balls is None else config.balls
    counted = None
    if rounds:
        counted = Subtrees(
            config.dim,
            rounds,
            rows=config.subtree_rows,
            dropout=config.subtree_dropout,
            least=config.subtree_graphs,
        )
    answer = head(config.dim, outputs, config.head_dropout, 2 * config.dim if rounds else config.dim)
    return GraphModel(
        NodeEncoder(
            features.nodes,
            config.dim,
            random_walk=config.random_walk,
            laplacian=config.laplacian,
            balls=radius,
        ),
        [layer() for _ in range(config.depth)],
        lookup(READOUTS, config.readout, "readout")(config.dim),
        answer,
        features,
        counted,
        Forest(outputs, config.trees, config.leaves, config.forest_share) if config.trees else None,
        normalised=len(answer) == 1,
    )
