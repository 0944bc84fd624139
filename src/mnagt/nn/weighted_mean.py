"""A network and models of decision trees as one model: the weighted mean of their probabilities, or numbers."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.sparse import take
from mnagt.nn.decision_trees import LINKS
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.joined_model import JoinedModel
from mnagt.nn.molecule_descriptors import take_first_rows
from mnagt.nn.readouts import Prepared, Readout
from mnagt.nn.shapes import NodeVectors

OUTPUTS = "member-outputs"
"""The encoding of nodes that holds the outputs of the members beside the network for their molecule."""


class MemberReadout(Readout):
    """The outputs of a model that reads the whole molecule, from ``readout`` and ``head`` of ``model``."""

    def __init__(self, model: GraphModel, outputs: int) -> None:
        super().__init__(outputs)
        self.readout, self.head = model.readout, model.head

    @property
    def encodings(self) -> dict[str, int]:
        return self.readout.encodings

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        return self.head(self.readout(x, graph))


class JoinedReadout(Readout):
    """The readout of the network, and the outputs of the other members in the columns after it."""

    def __init__(self, network: Readout, members: Mapping[str, MemberReadout]) -> None:
        super().__init__(network.dim + sum(member.dim for member in members.values()))
        self.network, self.members = network, nn.ModuleDict(members)

    @property
    def encodings(self) -> dict[str, int]:
        encodings = dict(self.network.encodings)
        for member in self.members.values():
            assert isinstance(member, MemberReadout)
            encodings |= member.encodings
        return encodings

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> Prepared:
        """Adds the outputs of the members to the graph's encodings, before the network's readout adds nodes."""
        outputs = torch.cat([member(x, graph) for member in self.members.values()], dim=1).to(x.dtype)
        given = {**graph.encodings, OUTPUTS: take(graph.graph_of, outputs)}
        return self.network.prepare(x, replace(graph, encodings=given))

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs all"]:
        outputs = take_first_rows(graph.encodings[OUTPUTS], graph, missing=0.0)
        return torch.cat([self.network(x, graph), outputs.to(x.dtype)], dim=1)


class WeightedMeanHead(nn.Module):
    """The mean, with ``weights``, of the probabilities or numbers of the network and of the members beside it."""

    weights: Float[Tensor, "members"]
    """Of the network, then of the others; they sum to 1."""
    link: Int[Tensor, ""]
    """An index of ``LINKS``."""

    def __init__(self, head: nn.Module, outputs: int, members: int) -> None:
        super().__init__()
        self.head, self.outputs = head, outputs
        self.register_buffer("weights", torch.full((1 + members,), 1 / (1 + members)))
        self.register_buffer("link", torch.zeros((), dtype=torch.int32))

    def forward(self, vector: Float[Tensor, "graphs all"]) -> Float[Tensor, "graphs outputs"]:
        width = vector.shape[1] - self.outputs * (len(self.weights) - 1)
        outputs = [self.head(vector[:, :width]), *vector[:, width:].split(self.outputs, dim=1)]
        return self.join(torch.stack([output.to(vector.dtype) for output in outputs]))

    def join(self, each: Float[Tensor, "members graphs outputs"]) -> Float[Tensor, "graphs outputs"]:
        """The outputs of all from those of each member."""
        weights = self.weights.to(each.dtype)[:, None, None]
        match LINKS[int(self.link)]:
            case "logit":
                return (weights * each.sigmoid()).sum(dim=0).logit(eps=torch.finfo(each.dtype).eps)
            case "log":
                mean = (weights * each.softmax(dim=-1)).sum(dim=0)
                return mean.clamp(min=torch.finfo(each.dtype).tiny).log()
            case _:
                return (weights * each).sum(dim=0)


class WeightedMean(JoinedModel):
    """The weighted mean of a network and of models of trees; each is fitted by itself, the network as ``network``."""

    def __init__(self, network: GraphModel, members: Mapping[str, GraphModel], outputs: int) -> None:
        beside = {name: MemberReadout(model, outputs) for name, model in members.items()}
        readout = JoinedReadout(network.readout, beside)
        head = WeightedMeanHead(network.head, outputs, len(beside))
        super().__init__(network.encoder, list(network.layers), readout, head, network.features)

    @property
    def members(self) -> tuple[str, ...]:
        assert isinstance(self.readout, JoinedReadout)
        return ("network", *self.readout.members)

    @property
    def network(self) -> GraphModel:
        assert isinstance(self.readout, JoinedReadout)
        assert isinstance(self.head, WeightedMeanHead)
        return GraphModel(self.encoder, list(self.layers), self.readout.network, self.head.head, self.features)
