"""Positions of nodes for the page: molecules by RDKit, syntax trees as trees, other graphs by their distances."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mnagt.data.readers.code_trees import Function
from mnagt.graphs.batch import GraphBatch
from mnagt.reports.layout import compute_layout

MAX_LAYOUT_NODES = 90
"""Larger graphs are drawn as trees: a layout by distances would take too long."""
ORDERS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3}


def compute_drawing(
    graph: GraphBatch, smiles: str | None, function: Function | None, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Positions and labels of nodes, and edges as (source, destination, bond order).

    The y axis points down, and edges have a length of about 1. ``names`` are those of the first column of nodes.
    """
    if smiles is not None:
        return _draw_molecule(smiles)
    ends = graph.edge_index.T.tolist()
    edges = sorted({(min(pair), max(pair)) for pair in ends})
    if function is not None:
        labels = [attribute or kind for kind, attribute in zip(function.types, function.attributes, strict=True)]
        branches = [(parent, node) for node, parent in enumerate(function.parents) if parent >= 0]
        return _to_json(_tree_layout(function.parents), labels, [(*pair, 1) for pair in branches])
    indices = [] if graph.node_labels is None else graph.node_labels[:, 0].tolist()
    labels = [_name(i, names) for i in indices] or [""] * graph.num_nodes
    is_small = graph.num_nodes <= MAX_LAYOUT_NODES
    positions = (
        compute_layout(graph.num_nodes, edges) if is_small else _tree_layout(_find_parents(graph.num_nodes, edges))
    )
    return _to_json(positions, labels, [(*pair, 1) for pair in edges])


def _name(index: int, names: Sequence[str]) -> str:
    """The name of a category."""
    return "" if index < 0 else names[index] if index < len(names) else str(index)


def _to_json(
    positions: Float[np.ndarray, "nodes 2"], labels: Sequence[str], edges: Sequence[tuple[int, int, int]]
) -> dict[str, Any]:
    nodes = [
        {"x": round(x, 3), "y": round(y, 3), "label": label}
        for (x, y), label in zip(positions.tolist(), labels, strict=True)
    ]
    return {"nodes": nodes, "edges": [list(edge) for edge in edges]}


def _draw_molecule(smiles: str) -> dict[str, Any]:
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.Draw.rdMolDraw2D import PrepareMolForDrawing
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        molecule = PrepareMolForDrawing(MolFromSmiles(smiles), kekulize=True, addChiralHs=False, wedgeBonds=False)
    positions = molecule.GetConformer().GetPositions()[:, :2] / (1.5, -1.5)
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), ORDERS.get(bond.GetBondType().name, 1))
        for bond in molecule.GetBonds()
    ]
    return _to_json(positions, [_symbol(atom) for atom in molecule.GetAtoms()], bonds)


def _symbol(atom: Any) -> str:
    """The symbol with hydrogens and charge; empty for a carbon that has neighbours."""
    charge, hydrogens, symbol = atom.GetFormalCharge(), atom.GetTotalNumHs(), atom.GetSymbol()
    if symbol == "C" and not charge and atom.GetDegree():
        return ""
    text = symbol + ("" if not hydrogens else "H" if hydrogens == 1 else f"H{hydrogens}")
    sign = "+" if charge > 0 else "−"
    return text + ("" if not charge else sign if abs(charge) == 1 else f"{abs(charge)}{sign}")


def _tree_layout(parents: Sequence[int]) -> Float[np.ndarray, "nodes 2"]:
    """A tree layout: leaves side by side, parents centred above. Parents come before their children."""
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


def _find_parents(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The first neighbour before each node, or -1: a spanning forest in which parents come before their children."""
    lower: list[list[int]] = [[] for _ in range(count)]
    for i, j in edges:
        lower[j].append(i)
    return [min(near, default=-1) for near in lower]
