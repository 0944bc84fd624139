"""Drawings of small graphs: molecules with bonds as in chemistry, nodes as pies or coloured by a value."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape

from mnagt.graphs.batch import GraphBatch
from mnagt.reports.picture import LAYER, TOOLTIP, Key, Picture
from mnagt.reports.theme import CARD, INK, LIGHT, SOFT, to_css_variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOND = 40
"""Length of a bond in pixels."""
MAX_RING = 8
"""Atoms of the largest cycle that is drawn as a regular polygon."""
POSITIVE, NEGATIVE = LIGHT["series-0"], LIGHT["series-1"]
"""Colours of nodes that raise an output and of nodes that lower it."""


@dataclass(frozen=True)
class DrawnGraph:
    """A graph to draw.

    Args:
        nodes: The name of each node. A carbon, ``"C"``, of a molecule goes without its symbol.
        bonds: First node, second node, and kind: single, double, triple, aromatic, broken or formed; others are drawn
            as single.
        smiles: Gives the positions of atoms, where RDKit can read it and finds as many.
    """

    nodes: Sequence[str]
    bonds: Sequence[tuple[int, int, str]]
    smiles: str | None = None

    @cached_property
    def positions(self) -> Float[np.ndarray, "nodes 2"]:
        """Positions in pixels, y pointing down."""
        molecule = read_molecule(self.smiles, len(self.nodes))
        if molecule is None:
            return BOND * compute_layout(len(self.nodes), [(i, j) for i, j, _ in self.bonds])
        from rdkit.Chem.rdDepictor import Compute2DCoords

        Compute2DCoords(molecule)
        return molecule.GetConformer().GetPositions()[:, :2] * (BOND / 1.5, -BOND / 1.5)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of a drawing with a margin; never a very small one."""
        width, height = np.maximum(np.ptp(self.positions, axis=0) + 36, (280, 200)).tolist()
        return width, height


def list_bonds(graph: GraphBatch, kinds: Sequence[str]) -> list[tuple[int, int, str]]:
    """Each pair of connected nodes once, with the name of its first category if it has one."""
    labels = [-1] * graph.num_edges if graph.edge_labels is None else graph.edge_labels[:, 0].tolist()
    ends = zip(graph.edge_index.T.tolist(), labels, strict=True)
    kind_of_bond = {(min(i, j), max(i, j)): kinds[k] if 0 <= k < len(kinds) else "" for (i, j), k in ends if i != j}
    return [(i, j, kind) for (i, j), kind in kind_of_bond.items()]


def read_molecule(smiles: str | None, count: int) -> Any:
    """RDKit's molecule; None without RDKit, or where it does not find ``count`` atoms: its versions differ on a few.

    Several components, with tabs between them, are one molecule.
    """
    if smiles is None or find_spec("rdkit") is None:
        return None
    from rdkit.Chem import MolFromSmiles
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        molecule = MolFromSmiles(smiles.replace("\t", "."))
    return molecule if molecule is not None and molecule.GetNumAtoms() == count else None


def draw_pies(
    caption: str, graph: DrawnGraph, layers: Sequence[Sequence[Sequence[float]]], keys: Sequence[Key]
) -> Picture:
    """A graph whose nodes are pies of ``layers[layer][node]``, shares that add up to 1, one for each key.

    Layer i has the class ``layer-i``, by which a page shows one layer at a time.
    """

    def draw(ax: "Axes") -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Wedge

        radii = [10.5 if node == "C" else 14.0 for node in graph.nodes] if layers else [3.0] * len(graph.nodes)
        symbols = ["" if node == "C" else node for node in graph.nodes]
        _draw_structure(ax, graph, [radius + 1.5 for radius in radii], symbols)
        for number, shares in enumerate(layers):
            wedges, inks, tips = [], [], []
            for i, (position, node) in enumerate(zip(graph.positions.tolist(), graph.nodes, strict=True)):
                shown = ", ".join(f"{key.name} {100 * s:.0f} %" for key, s in zip(keys, shares[i], strict=True))
                ends = -90 + 360 * np.cumsum([0, *shares[i]])
                for first, last, key in zip(ends[:-1], ends[1:], keys, strict=True):
                    if last - first > 0.1:
                        width = None if node == "C" else radii[i] - 9.5
                        wedges.append(Wedge(position, radii[i], first, last, width=width))
                        inks.append(key.colour)
                        tips.append(f"{TOOLTIP}{node} (atom {i + 1}): {shown}")
            pies = PatchCollection(wedges, facecolors=inks, linewidth=0, zorder=3, gid=f"{LAYER}{number}")
            pies.set_urls(tips)
            ax.add_collection(pies)

    return Picture(caption, graph.size, draw, css_class="structure")


def draw_values(caption: str, graph: DrawnGraph, values: Sequence[float]) -> Markup:
    """A graph whose nodes are coloured by ``values``; by RDKit where the graph has a SMILES that it can read."""
    from matplotlib.colors import to_rgba

    molecule, opacities = read_molecule(graph.smiles, len(graph.nodes)), compute_opacities(values)
    fills = [to_rgba(value_colour(value), opacity) for value, opacity in zip(values, opacities, strict=True)]
    if molecule is not None:
        return _draw_with_rdkit(caption, molecule, fills)

    def draw(ax: "Axes") -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Circle

        _draw_structure(ax, graph, [13.0] * len(graph.nodes), [node[:3] for node in graph.nodes])
        discs = [Circle(position, 13) for position in graph.positions.tolist()]
        nodes = PatchCollection(discs, facecolors=fills, edgecolor=SOFT, linewidth=1, zorder=3)
        pairs = enumerate(zip(graph.nodes, values, strict=True))
        nodes.set_urls([f"{TOOLTIP}{name} (node {i}): {value:+.3f}" for i, (name, value) in pairs])
        ax.add_collection(nodes)

    return Picture(caption, graph.size, draw, css_class="structure").to_svg()


def value_colour(value: float) -> str:
    """The colour of nodes that raise an output, or of those that lower it."""
    return POSITIVE if value > 0 else NEGATIVE


def compute_opacities(values: Sequence[float]) -> list[float]:
    """The magnitude of each value as a share of the largest."""
    largest = max(map(abs, values), default=0.0) or 1.0
    return [abs(value) / largest for value in values]


def _draw_with_rdkit(caption: str, molecule: Any, fills: Sequence[tuple[float, ...]]) -> Markup:
    from rdkit.Chem.Draw.rdMolDraw2D import MolDraw2DSVG

    pen, colours = MolDraw2DSVG(420, 300), dict(enumerate(fills))
    options = pen.drawOptions()
    options.useBWAtomPalette()
    options.clearBackground, options.continuousHighlight, options.highlightRadius = False, False, 0.38
    pen.DrawMolecule(molecule, highlightAtoms=list(colours), highlightAtomColors=colours, highlightBonds=[])
    pen.FinishDrawing()
    inner = pen.GetDrawingText().split("<!-- END OF HEADER -->")[1].rsplit("</svg>", 1)[0]
    inner = re.sub(r"<!--.*?-->| class='[^']*'", "", inner, flags=re.DOTALL).replace("#000000", INK)
    inner = re.sub(r"(#[0-9A-F]{6})([0-9A-F]{2})\b", _mix_with_transparent, inner)
    opening = f'<svg viewBox="0 0 420 300" role="img" aria-label="{escape(caption)}" class="molecule">'
    return Markup(opening + to_css_variables(inner) + "</svg>")


def _mix_with_transparent(match: re.Match[str]) -> str:
    """A colour with opacity, ``#rrggbbaa``, in CSS that takes a variable as the colour."""
    return f"color-mix(in srgb, {match[1]} {int(match[2], 16) / 2.55:.0f}%, transparent)"


# --- parts of drawings ---


def _draw_structure(ax: "Axes", graph: DrawnGraph, radii: Sequence[float], symbols: Sequence[str]) -> None:
    """Bonds, an empty disc for each node, and symbols above what is drawn on the discs."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle

    at, (width, height) = graph.positions, graph.size
    x, y = (at.min(axis=0) + np.ptp(at, axis=0) / 2).tolist()
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))  # a pixel for each unit, y pointing down
    ax.set(xlim=(x - width / 2, x + width / 2), ylim=(y + height / 2, y - height / 2))
    ax.set_axis_off()
    _draw_bonds(ax, at, graph.bonds)
    discs = [Circle(position, radius) for position, radius in zip(at.tolist(), radii, strict=True)]
    ax.add_collection(PatchCollection(discs, facecolor=CARD, linewidth=0, zorder=2))
    for symbol, (x, y) in zip(symbols, at.tolist(), strict=True):
        if symbol:
            ax.text(x, y + 4, symbol, ha="center", fontsize=11, fontweight="bold", zorder=4)


def _draw_bonds(ax: "Axes", at: Float[np.ndarray, "nodes 2"], bonds: Sequence[tuple[int, int, str]]) -> None:
    """A line for each bond, two or three where its kind asks for them; broken ones are dotted, formed ones dashed."""
    from matplotlib.collections import LineCollection

    rings = find_smallest_rings(len(at), [(i, j) for i, j, _ in bonds])
    solid, dashed, dotted = [], [], []
    for (i, j, kind), ring in zip(bonds, rings, strict=True):
        along = (at[j] - at[i]) / max(1e-9, float(np.hypot(*(at[j] - at[i]))))
        across = np.array([-along[1], along[0]])
        if ring and across @ (at[ring].mean(axis=0) - at[i]) < 0:
            across = -across  # towards the inside of the ring
        is_inside = kind == "aromatic" or (kind == "double" and ring)
        offsets = {"triple": (-4.5, 0.0, 4.5), "double": (-2.5, 2.5)}.get(kind, (0.0,))
        for number, offset in enumerate((0.0, 5.0) if is_inside else offsets):
            line = [at[i] + across * offset, at[j] + across * offset]
            is_dashed = kind == "formed" or (kind == "aromatic" and number)
            (dashed if is_dashed else dotted if kind == "broken" else solid).append(line)
    for lines, style in ((solid, "-"), (dashed, (0, (3.5, 3))), (dotted, (0, (1, 2)))):
        ax.add_collection(LineCollection(lines, colors=SOFT, linewidths=1.8, linestyles=[style], zorder=1))


# --- positions: edges of one length, rings as regular polygons ---


def compute_layout(count: int, edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes 2"]:
    r"""Positions of ``count`` nodes, edges about 1 long; deterministic.

    Stress majorisation: minimises :math:`\sum_{ij} t_{ij}^{-3} (|x_i - x_j| - t_{ij})^2` from eight starts, where
    :math:`t_{ij}` is the chord of a regular polygon in a small ring and the length of a zigzag of 120° elsewhere.

    >>> compute_layout(2, [(0, 1)]).round(2).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    """
    if count < 2:
        return np.zeros((count, 2))
    target = _target_distances(count, edges)
    weight = target**-3
    np.fill_diagonal(weight, 0)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    best, least = np.zeros((count, 2)), math.inf
    for seed in range(8):
        x = _scale_to_plane(target) + 0.3 * np.random.default_rng(seed).normal(size=(count, 2))
        for _ in range(250):
            pull = -weight * target / np.maximum(_distances(x), 1e-9)
            np.fill_diagonal(pull, 0)
            np.fill_diagonal(pull, -pull.sum(axis=1))
            x = inverse @ (pull @ x)
        stress = float((weight * (_distances(x) - target) ** 2).sum())
        if stress < least - 1e-6:
            best, least = x, stress
    return _rotate_upright(best, edges)


def find_smallest_rings(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For each edge the nodes of the smallest cycle through it, in order; empty if it has more than `MAX_RING`."""
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)
    return [_find_ring(i, j, neighbours) for i, j in edges]


def _find_ring(i: int, j: int, neighbours: Sequence[Sequence[int]]) -> list[int]:
    paths, visited = [[i]], {i}
    while paths and len(paths[0]) < MAX_RING:
        longer = []
        for path in paths:
            for node in neighbours[path[-1]]:
                if node == j and len(path) > 1:
                    return [*path, j]
                if node not in visited and node != j:
                    visited.add(node)
                    longer.append([*path, node])
        paths = longer
    return []


def _distances(x: Float[np.ndarray, "nodes 2"]) -> Float[np.ndarray, "nodes nodes"]:
    return np.hypot(*(x[:, None] - x[None]).T)


def _target_distances(count: int, edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes nodes"]:
    """Wanted distances between nodes; 1 on the diagonal. Connected components lie apart."""
    from scipy.sparse.csgraph import shortest_path

    adjacency = np.zeros((count, count))
    for i, j in edges:
        adjacency[i, j] = 1
    steps = shortest_path(adjacency, directed=False, unweighted=True)
    steps[np.isinf(steps)] = steps[np.isfinite(steps)].max() + 1
    target = np.sqrt(0.75 * steps**2 + 0.25 * (steps % 2))
    for ring in find_smallest_rings(count, edges):
        for a, first in enumerate(ring):
            for b, second in enumerate(ring):
                target[first, second] = math.sin(math.pi * abs(a - b) / len(ring)) / math.sin(math.pi / len(ring))
    np.fill_diagonal(target, 1)
    return np.maximum(target, 1)


def _scale_to_plane(target: Float[np.ndarray, "nodes nodes"]) -> Float[np.ndarray, "nodes 2"]:
    """Classical multidimensional scaling of the distances."""
    squares = target**2
    np.fill_diagonal(squares, 0)
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))


def _rotate_upright(x: Float[np.ndarray, "nodes 2"], edges: Sequence[tuple[int, int]]) -> Float[np.ndarray, "nodes 2"]:
    """Rotated so that the longer side is horizontal, and edges are at multiples of 30° where they can be."""
    x = x - x.mean(axis=0)
    x = x @ np.linalg.svd(x, full_matrices=False)[2].T
    if edges:
        first, second = np.array(edges).T
        angles = np.arctan2(*(x[second] - x[first]).T[::-1])
        turn = np.angle(np.exp(12j * angles).sum()) / 12
        x = x @ np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    return x
