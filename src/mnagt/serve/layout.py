"""Positions of nodes for the page: molecules by RDKit, syntax trees as trees, other graphs by their distances."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mnagt.data.readers.code_trees import Function
from mnagt.graphs.batch import GraphBatch
from mnagt.reports.graph_drawing import compute_layout, read_molecule

MAX_LAYOUT_NODES = 90
"""Larger graphs are drawn as trees: a layout by distances would take too long."""
ORDERS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3}


def compute_drawing(
    graph: GraphBatch, smiles: str | None, function: Function | None, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Positions and labels of nodes, and edges as (source, destination, bond order).

    The y axis points down, and edges have a length of about 1. ``names`` are those of the first column of nodes.
    """
    if (molecule := read_molecule(smiles, graph.num_nodes)) is not None:
        positions, labels, edges = _draw_molecule(molecule)
    elif function is not None:
        positions = _tree_layout(function.parents)
        labels = [attribute or kind for kind, attribute in zip(function.types, function.attributes, strict=True)]
        edges = [(parent, node, 1) for node, parent in enumerate(function.parents) if parent >= 0]
    else:
        pairs = sorted({(min(pair), max(pair)) for pair in graph.edge_index.T.tolist()})
        is_small = graph.num_nodes <= MAX_LAYOUT_NODES
        parents = [] if is_small else _find_parents(graph.num_nodes, pairs)
        positions = compute_layout(graph.num_nodes, pairs) if is_small else _tree_layout(parents)
        indices = [-1] * graph.num_nodes if graph.node_labels is None else graph.node_labels[:, 0].tolist()
        name_of = {-1: "", **dict(enumerate(names))}
        labels = [name_of.get(index, str(index)) for index in indices]
        edges = [(*pair, 1) for pair in pairs]
    nodes = zip(positions.round(3).tolist(), labels, strict=True)
    return {"nodes": [{"x": x, "y": y, "label": label} for (x, y), label in nodes], "edges": edges}


def _draw_molecule(molecule: Any) -> tuple[Float[np.ndarray, "nodes 2"], list[str], list[tuple[int, int, int]]]:
    from rdkit.Chem.Draw.rdMolDraw2D import PrepareMolForDrawing

    molecule = PrepareMolForDrawing(molecule, kekulize=True, addChiralHs=False, wedgeBonds=False)
    positions = molecule.GetConformer().GetPositions()[:, :2] / (1.5, -1.5)
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), ORDERS.get(bond.GetBondType().name, 1))
        for bond in molecule.GetBonds()
    ]
    return positions, [_symbol(atom) for atom in molecule.GetAtoms()], bonds


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
