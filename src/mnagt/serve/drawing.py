"""Where the page draws the nodes of a graph: molecules as RDKit lays them out, syntax trees as trees."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from jaxtyping import Float

from mnagt.data.code_trees import Function
from mnagt.experiments.structures import layout
from mnagt.graphs.batch import GraphBatch

MOST_SPREAD = 90
"""Nodes of a graph that is laid out by its distances; that of a larger one takes too long."""
ORDERS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3}


def drawn(
    graph: GraphBatch, smiles: str | None, function: Function | None, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Places and labels of nodes, edges as (from, to, order), y pointing down and an edge about 1 long."""
    if smiles is not None:
        return _molecule(smiles)
    ends = graph.edge_index.T.tolist()
    edges = sorted({(min(pair), max(pair)) for pair in ends})
    if function is not None:
        labels = [attribute or kind for kind, attribute in zip(function.types, function.attributes, strict=True)]
        branches = [(parent, node) for node, parent in enumerate(function.parents) if parent >= 0]
        return _told(_tree(function.parents), labels, [(*pair, 1) for pair in branches])
    numbers = [] if graph.node_labels is None else graph.node_labels[:, 0].tolist()
    labels = [_word(n, words) for n in numbers] or [""] * graph.num_nodes
    at = layout(graph.num_nodes, edges) if graph.num_nodes <= MOST_SPREAD else _tree(_parents(graph.num_nodes, edges))
    return _told(at, labels, [(*pair, 1) for pair in edges])


def _word(number: int, words: Sequence[str]) -> str:
    """What a category is called."""
    return "" if number < 0 else words[number] if number < len(words) else str(number)


def _told(
    at: Float[np.ndarray, "nodes 2"], labels: Sequence[str], edges: Sequence[tuple[int, int, int]]
) -> dict[str, Any]:
    nodes = [
        {"x": round(x, 3), "y": round(y, 3), "label": label} for (x, y), label in zip(at.tolist(), labels, strict=True)
    ]
    return {"nodes": nodes, "edges": [list(edge) for edge in edges]}


def _molecule(smiles: str) -> dict[str, Any]:
    from rdkit.Chem import Kekulize, KekulizeException, MolFromSmiles
    from rdkit.Chem.rdDepictor import Compute2DCoords
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        molecule = MolFromSmiles(smiles)
        with suppress(KekulizeException):
            Kekulize(molecule, clearAromaticFlags=True)
        Compute2DCoords(molecule)
    at = molecule.GetConformer().GetPositions()[:, :2] / (1.5, -1.5)
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), ORDERS.get(bond.GetBondType().name, 1))
        for bond in molecule.GetBonds()
    ]
    return _told(at, [_symbol(atom) for atom in molecule.GetAtoms()], bonds)


def _symbol(atom: Any) -> str:
    """As chemists write it: a carbon in a chain goes without."""
    charge, hydrogens, symbol = atom.GetFormalCharge(), atom.GetTotalNumHs(), atom.GetSymbol()
    if symbol == "C" and not charge and atom.GetDegree():
        return ""
    told = symbol + ("" if not hydrogens else "H" if hydrogens == 1 else f"H{hydrogens}")
    sign = "+" if charge > 0 else "−"
    return told + ("" if not charge else sign if abs(charge) == 1 else f"{abs(charge)}{sign}")


def _tree(parents: Sequence[int]) -> Float[np.ndarray, "nodes 2"]:
    """Leaves side by side, what stands above them in their middle. Parents come before their children."""
    children: list[list[int]] = [[] for _ in parents]
    depth = [0] * len(parents)
    for node, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(node)
            depth[node] = depth[parent] + 1
    x, leaves, stack = [0.0] * len(parents), 0, [node for node, parent in enumerate(parents) if parent < 0][::-1]
    while stack:
        node = stack.pop()
        stack += children[node][::-1]
        if not children[node]:
            x[node], leaves = float(leaves), leaves + 1
    for node in range(len(parents) - 1, -1, -1):
        if children[node]:
            x[node] = sum(x[child] for child in children[node]) / len(children[node])
    return np.column_stack([x, depth]) * (1.7, 1.3)  # labels are wider than they are high


def _parents(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Of each node, one before it that it hangs on: a forest in which children come after their parents."""
    lower: list[list[int]] = [[] for _ in range(count)]
    for i, j in edges:
        lower[j].append(i)
    return [min(near, default=-1) for near in lower]
