"""Decision trees as tensors: how graphs find their leaves by presence features."""

import torch
from jaxtyping import Int, Shaped, UInt8
from torch import Tensor


def presence_features(
    column: Int[Tensor, "nodes some"], graph: Int[Tensor, "nodes"], num_graphs: int, width: int
) -> UInt8[Tensor, "graphs width"]:
    """1 where a node of a graph has the column; ``column`` lists those of each node.

    >>> presence_features(torch.tensor([[0], [2], [2]]), torch.tensor([0, 0, 1]), num_graphs=2, width=3)
    tensor([[1, 0, 1],
            [0, 0, 1]], dtype=torch.uint8)
    """
    index = graph[:, None] * width + column
    features = torch.zeros(num_graphs * width, dtype=torch.uint8, device=column.device)
    return features.index_fill(0, index.flatten().long(), 1).view(-1, width)


def find_leaves(
    features: UInt8[Tensor, "graphs features"],
    feature: Int[Tensor, "tree_nodes"],
    child: Int[Tensor, "tree_nodes 2"],
    root: Int[Tensor, "trees"],
    depth: int,
) -> Int[Tensor, "trees graphs"]:
    """The leaf of each tree that each graph comes to after ``depth`` steps.

    Tree node i tests feature ``feature[i]`` and leads to ``child[i, 0]`` where it is 0, to ``child[i, 1]`` where it is
    1; a leaf leads to itself. All numbers of nodes and features are int32.
    """
    graphs, device = features.shape[0], features.device
    features, child = features.T.flatten(), child.flatten()
    graph = torch.arange(graphs, dtype=torch.int32, device=device)
    node = root[:, None].expand(-1, graphs)  # tree by tree: a tree is small, and stays in the cache
    for _ in range(depth):
        has = take_rows(features, take_rows(feature, node) * graphs + graph)
        node = take_rows(child, 2 * node + has)
    return node


def take_rows(values: Shaped[Tensor, "n *columns"], index: Int[Tensor, "*some"]) -> Shaped[Tensor, "*all"]:
    """``values[index]``, faster where the index is of 32 bits."""
    return values.index_select(0, index.flatten()).view(*index.shape, *values.shape[1:])
