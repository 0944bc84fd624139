"""A network and other models, each fitted by itself, as one: the weighted sum or mean of what they predict."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import add_encodings
from mnagt.graphs.sparse import take
from mnagt.nn.decision_trees import LINKS, apply_link
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.molecule_descriptors import take_first_rows
from mnagt.nn.readouts import Prepared, Readout
from mnagt.nn.shapes import NodeVectors


class MemberReadout(Readout):
    """The outputs of a model that reads the whole graph, from its ``readout`` and ``head``."""

    def __init__(self, name: str, model: GraphModel, outputs: int) -> None:
        super().__init__(outputs)
        self.encoding, self.readout, self.head = f"{name}-outputs", model.readout, model.head
        self.encodings = model.readout.encodings

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> Prepared:
        """Adds the outputs to the graph's encodings, before the network's readout adds nodes."""
        outputs = take(graph.graph_of, self.head(self.readout(x, graph)).to(x.dtype))
        return x, replace(graph, encodings={**graph.encodings, self.encoding: outputs})

    def forward(self, x: Float[Tensor, "nodes _"], graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        return take_first_rows(graph.encodings[self.encoding], graph, missing=0.0)


class JoinedReadout(Readout):
    """The readout of the network, and the outputs of the members in the columns after it.

    Encodings that several of them read, such as descriptors, are computed once.
    """

    def __init__(self, network: Readout, members: Mapping[str, Readout]) -> None:
        super().__init__(network.dim + sum(member.dim for member in members.values()))
        self.network = network
        self.members: Mapping[str, Readout] = nn.ModuleDict(members)  # type: ignore[assignment]
        sizes = [(name, size) for part in (network, *members.values()) for name, size in part.encodings.items()]
        readers = Counter(name for name, _ in sizes)
        self.encodings, self.shared = dict(sizes), {name: size for name, size in sizes if readers[name] > 1}

    def prepare(self, x: NodeVectors, graph: GraphBatch) -> Prepared:
        graph = add_encodings(graph, self.shared)
        for member in self.members.values():
            x, graph = member.prepare(x, graph)
        return self.network.prepare(x, graph)

    def forward(self, x: NodeVectors, graph: GraphBatch) -> Float[Tensor, "graphs all"]:
        members = [member(x, graph).to(x.dtype) for member in self.members.values()]
        return torch.cat([self.network(x, graph), *members], dim=1)


class WeightedSum(nn.Module):
    """The sum, with ``weights``, of the outputs of the network and of the members (``training/fit_members.py``)."""

    weights: Float[Tensor, "models"]
    """Of the network, then of the members."""

    def __init__(self, head: nn.Module, outputs: int, members: int) -> None:
        super().__init__()
        self.head, self.outputs = head, outputs
        self.register_buffer("weights", torch.full((1 + members,), 1 / (1 + members)))

    def forward(self, vector: Float[Tensor, "graphs all"]) -> Float[Tensor, "graphs outputs"]:
        width = vector.shape[1] - self.outputs * (len(self.weights) - 1)
        outputs = [self.head(vector[:, :width]), *vector[:, width:].split(self.outputs, dim=1)]
        return self.join(torch.stack([output.to(vector.dtype) for output in outputs]))

    def join(self, outputs: Float[Tensor, "models graphs outputs"]) -> Float[Tensor, "graphs outputs"]:
        """The outputs of all from those of each model."""
        return (self.weights.to(outputs.dtype)[:, None, None] * outputs).sum(dim=0)


class WeightedMean(WeightedSum):
    """The mean, with ``weights`` that sum to 1, of the probabilities or numbers of network and members."""

    link: Int[Tensor, ""]
    """An index of ``LINKS``."""

    def __init__(self, head: nn.Module, outputs: int, members: int) -> None:
        super().__init__(head, outputs, members)
        self.register_buffer("link", torch.zeros((), dtype=torch.int32))

    def join(self, outputs: Float[Tensor, "models graphs outputs"]) -> Float[Tensor, "graphs outputs"]:
        link = LINKS[int(self.link)]
        probability = outputs.sigmoid() if link == "logit" else outputs.softmax(dim=-1) if link == "log" else outputs
        return apply_link(super().join(probability), link)


class JoinedModel(GraphModel):
    """A network and ``members``, which ``join`` weighs; each is fitted by itself, the network as ``network``."""

    readout: JoinedReadout  # pyright: ignore[reportIncompatibleVariableOverride]
    head: WeightedSum  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, network: GraphModel, members: Mapping[str, Readout], outputs: int, join: type[WeightedSum]
    ) -> None:
        readout, head = JoinedReadout(network.readout, members), join(network.head, outputs, len(members))
        super().__init__(network.encoder, list(network.layers), readout, head, network.features)

    @property
    def is_mean(self) -> bool:
        """Whether it predicts the mean of the members and not a sum."""
        return isinstance(self.head, WeightedMean)

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the models that are joined, in the order of their weights."""
        return ("network", *self.readout.members)

    @property
    def network(self) -> GraphModel:
        """The network alone; its modules are those of this model."""
        return GraphModel(self.encoder, list(self.layers), self.readout.network, self.head.head, self.features)

    @property
    def weights(self) -> Float[Tensor, "models"]:
        """The weight of each member."""
        return self.head.weights

    def outputs_of_members(self, output: Callable[[], Tensor]) -> dict[str, Tensor]:
        """What ``output`` returns while only the one or the other member counts."""
        weights, outputs = self.weights.clone(), {}
        for name, alone in zip(self.members, torch.eye(len(weights)), strict=True):
            self.weights.copy_(alone)
            outputs[name] = output()
        self.weights.copy_(weights)
        return outputs
