"""From the raw columns of nodes and edges to vectors."""

from itertools import accumulate, product
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch, cached_per_batch
from mnagt.graphs.encodings import flip_signs, get_encoding
from mnagt.graphs.features import Columns
from mnagt.graphs.sparse import look_up, look_up_sum
from mnagt.graphs.weisfeiler_lehman import STRUCTURAL_COLOURS
from mnagt.linear import Linear
from mnagt.nn.norms import BatchNorm, Rows
from mnagt.nn.shapes import EdgeVectors, NodeVectors

MAX_KINDS = 256
"""Edges with at most so many combinations of labels have one table of vectors."""


class Categorical(nn.Module):
    """The sum of one embedding a column. Category -1, 'none', has an embedding too."""

    offsets: Tensor

    def __init__(self, sizes: tuple[int, ...], dim: int) -> None:
        super().__init__()
        first = [0, *accumulate(size + 1 for size in sizes)][:-1]
        self.register_buffer("offsets", torch.tensor([row + 1 for row in first]), persistent=False)
        self.table = nn.Embedding(sum(sizes) + len(sizes), dim)
        nn.init.normal_(self.table.weight, std=len(sizes) ** -0.5)

    def forward(self, labels: Int[Tensor, "rows columns"]) -> Float[Tensor, "rows dim"]:
        return look_up_sum(self.table.weight, labels + self.offsets)


class Continuous(nn.Module):
    """Columns brought to mean 0 and variance 1 (as seen in training), then a linear map."""

    def __init__(self, columns: int, dim: int, rows: Rows = "nodes") -> None:
        super().__init__()
        self.standardise = BatchNorm(columns, affine=False, rows=rows)
        self.project = Linear(columns, dim)

    def forward(
        self, values: Float[Tensor, "rows columns"], graph: GraphBatch | None = None
    ) -> Float[Tensor, "rows dim"]:
        return self.project(self.standardise(values.to(self.project.weight.dtype), graph))


class Degree(nn.Module):
    """One embedding a degree, for graphs whose nodes have no columns; degrees above the last share one."""

    def __init__(self, dim: int, last: int = 512) -> None:
        super().__init__()
        self.table = nn.Embedding(last + 1, dim)
        self.last = last

    def forward(self, graph: GraphBatch) -> NodeVectors:
        return look_up(self.table.weight, graph.in_degree.clamp(max=self.last))


class StructuralCounts(nn.Module):
    """Embeddings of a node's degree, core number and triangles as exact numbers, for graphs without node columns.

    Degree, core number, the pair of degree and triangles, and all three have a table each. They are hashed to its rows.
    """

    offsets: Tensor

    def __init__(self, dim: int, rows: int = 2**13) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("offsets", torch.arange(STRUCTURAL_COLOURS) * rows, persistent=False)
        self.table = nn.Embedding(STRUCTURAL_COLOURS * rows, dim)
        nn.init.normal_(self.table.weight, std=STRUCTURAL_COLOURS**-0.5)

    def forward(self, colours: Int[Tensor, "nodes colours"]) -> NodeVectors:
        return look_up_sum(self.table.weight, colours.long() % self.rows + self.offsets)


class ColumnEncoder(nn.Module):
    """The sum of the vectors of the categorical and of the continuous columns."""

    def __init__(self, columns: Columns, dim: int, rows: Rows = "nodes") -> None:
        super().__init__()
        self.labels = Categorical(columns.labels, dim) if columns.labels else None
        self.values = Continuous(columns.values, dim, rows) if columns.values else None

    def forward(
        self,
        labels: Int[Tensor, "rows _"] | None,
        values: Float[Tensor, "rows _"] | None,
        graph: GraphBatch | None = None,
    ) -> Float[Tensor, "rows dim"]:
        parts = []
        if self.labels is not None:
            parts.append(self.labels(labels))
        if self.values is not None:
            parts.append(self.values(values, graph))
        return sum(parts[1:], start=parts[0])


class EdgeEncoder(nn.Module):
    """Vectors for edges with columns. Where these are categories with few combinations, each combination is a kind."""

    kinds: Tensor | None
    """The labels of each kind; None where there are too many, or columns of numbers."""

    def __init__(self, columns: Columns, dim: int) -> None:
        super().__init__()
        if not columns:
            raise InputError(
                "this convolution reads edge columns, and the data set has none; choose one without, such as 'gin'"
            )
        self.columns = ColumnEncoder(columns, dim, "edges")
        self.sizes = tuple(size + 1 for size in columns.labels)  # 'none' counts too
        is_few = not columns.values and prod(self.sizes) <= MAX_KINDS
        kinds = torch.tensor(list(product(*(range(-1, size - 1) for size in self.sizes)))) if is_few else None
        self.register_buffer("kinds", kinds, persistent=False)

    def forward(self, graph: GraphBatch) -> EdgeVectors:
        return self.columns(graph.edge_labels, graph.edge_values, graph)

    def table(self) -> Float[Tensor, "kinds dim"]:
        """The vector of each kind."""
        return self.columns(self.kinds, None)

    def kind(self, graph: GraphBatch) -> Int[Tensor, "edges"]:
        """The kind of each edge."""
        return _kind(graph, self.sizes)


@cached_per_batch
def _kind(graph: GraphBatch, sizes: tuple[int, ...]) -> Int[Tensor, "edges"]:
    """Labels as one number, the last column running fastest."""
    assert graph.edge_labels is not None
    kind = torch.zeros(graph.num_edges, dtype=torch.int32, device=graph.device)
    for column, size in zip(graph.edge_labels.unbind(1), sizes, strict=True):
        kind = kind * size + column + 1
    return kind


class NodeEncoder(nn.Module):
    """Vectors for nodes: their columns, or their degree where they have none, plus structural encodings.

    Encodings are taken from ``graph.encodings`` where they were computed beforehand. The signs of Laplacian
    eigenvectors mean nothing: in training they are flipped at random.

    Args:
        columns: what the nodes of the data set carry.
        dim: width of the vectors.
        random_walk: steps of random-walk return probabilities; 0 for none.
        laplacian: number of Laplacian eigenvectors; 0 for none.
        ego_radius: radius of ego-network statistics; 0 for none.
        structural_counts: whether nodes without columns have embeddings of their exact core number and triangles too.

    >>> graph = GraphBatch.from_edges(torch.tensor([[0, 1], [1, 0]]), [3])
    >>> NodeEncoder(Columns(), 8, random_walk=4)(graph).shape
    torch.Size([3, 8])
    """

    encodings: dict[str, int] = {}  # noqa: RUF012
    """Name and size of each encoding that can be computed once for a whole data set."""

    def __init__(
        self,
        columns: Columns,
        dim: int,
        *,
        random_walk: int = 0,
        laplacian: int = 0,
        ego_radius: int = 0,
        structural_counts: bool = False,
    ) -> None:
        super().__init__()
        if columns and structural_counts:
            raise InputError(
                "structural counts are for graphs whose nodes have no columns; leave structural_counts out"
            )
        self.columns = ColumnEncoder(columns, dim) if columns else None
        self.degree = None if columns or structural_counts else Degree(dim)
        self.counts = StructuralCounts(dim) if structural_counts else None
        sizes = {"random-walk": random_walk, "laplacian": laplacian, "ego-statistics": ego_radius}
        sizes["structural-colours"] = STRUCTURAL_COLOURS if structural_counts else 0
        self.encodings = {name: size for name, size in sizes.items() if size}
        self.random_walk = Continuous(random_walk, dim) if random_walk else None
        self.ego_statistics = Continuous(3 * ego_radius, dim) if ego_radius else None
        self.laplacian = nn.Linear(laplacian, dim, bias=False) if laplacian else None

    def forward(self, graph: GraphBatch) -> NodeVectors:
        if self.columns is not None:
            x = self.columns(graph.node_labels, graph.node_values, graph)
        elif self.counts is not None:
            x = self.counts(self._encode(graph, "structural-colours"))
        else:
            assert self.degree is not None
            x = self.degree(graph)
        if self.random_walk is not None:
            x = x + self.random_walk(self._encode(graph, "random-walk"), graph)
        if self.ego_statistics is not None:
            x = x + self.ego_statistics(self._encode(graph, "ego-statistics"), graph)
        if self.laplacian is not None:
            vectors = self._encode(graph, "laplacian")
            vectors = flip_signs(vectors, graph) if self.training else vectors
            x = x + self.laplacian(vectors.to(x.dtype))
        return x

    def _encode(self, graph: GraphBatch, name: str) -> Tensor:
        return get_encoding(graph, name, self.encodings[name])


class NoEncoder(NodeEncoder):
    """Vectors without columns, for a model whose readout reads the graph alone."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, graph: GraphBatch) -> NodeVectors:
        return torch.zeros(graph.num_nodes, 0, device=graph.device)
