"""Drawings of small graphs: molecules with bonds as in chemistry, nodes as pies or coloured by a value."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape

from mnagt.reports.layout import compute_layout, find_smallest_ring, list_neighbours
from mnagt.reports.picture import LAYER, TOOLTIP, Key, Picture
from mnagt.reports.theme import CARD, INK, LIGHT, SOFT, to_css_variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOND = 40
"""Length of a bond in pixels."""
POSITIVE, NEGATIVE = LIGHT["series-0"], LIGHT["series-1"]
"""Colours of nodes that raise an output and of nodes that lower it."""


@dataclass(frozen=True)
class DrawnGraph:
    """A graph to draw.

    Args:
        nodes: The name of each node. A carbon, ``"C"``, of a molecule goes without its symbol.
        bonds: First node, second node, and kind: single, double, triple or aromatic; others are drawn as single.
        smiles: Gives the positions of atoms, where RDKit can read it and finds as many.
    """

    nodes: Sequence[str]
    bonds: Sequence[tuple[int, int, str]]
    smiles: str | None = None

    def positions(self) -> Float[np.ndarray, "nodes 2"]:
        """Positions in pixels, y pointing down."""
        molecule = read_molecule(self.smiles, len(self.nodes))
        if molecule is None:
            return BOND * compute_layout(len(self.nodes), [(i, j) for i, j, _ in self.bonds])
        from rdkit.Chem.rdDepictor import Compute2DCoords

        Compute2DCoords(molecule)
        return molecule.GetConformer().GetPositions()[:, :2] * (BOND / 1.5, -BOND / 1.5)


def read_molecule(smiles: str | None, count: int) -> Any:
    """RDKit's molecule; None without RDKit, or where it does not find ``count`` atoms: its versions differ on a few."""
    if smiles is None or find_spec("rdkit") is None:
        return None
    from rdkit.Chem import MolFromSmiles
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        molecule = MolFromSmiles(smiles)
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
        positions = _draw_structure(ax, graph, [radius + 1.5 for radius in radii], symbols)
        for number, shares in enumerate(layers):
            wedges, inks, tips = [], [], []
            for i, (position, node) in enumerate(zip(positions, graph.nodes, strict=True)):
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

    return Picture(caption, _size(graph.positions()), draw, css_class="structure")


def draw_values(caption: str, graph: DrawnGraph, values: Sequence[float]) -> Markup:
    """A graph whose nodes are coloured by ``values``; by RDKit where the graph has a SMILES that it can read."""
    molecule, opacities = read_molecule(graph.smiles, len(graph.nodes)), compute_opacities(values)
    if molecule is not None:
        return _draw_with_rdkit(caption, molecule, values, opacities)

    def draw(ax: "Axes") -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Circle

        positions = _draw_structure(ax, graph, [13.0] * len(graph.nodes), [node[:3] for node in graph.nodes])
        fills = [to_rgba(value_colour(v), alpha) for v, alpha in zip(values, opacities, strict=True)]
        discs = [Circle(position, 13) for position in positions]
        nodes = PatchCollection(discs, facecolors=fills, edgecolor=SOFT, linewidth=1, zorder=3)
        pairs = enumerate(zip(graph.nodes, values, strict=True))
        nodes.set_urls([f"{TOOLTIP}{name} (node {i}): {value:+.3f}" for i, (name, value) in pairs])
        ax.add_collection(nodes)

    return Picture(caption, _size(graph.positions()), draw, css_class="structure").to_svg()


def value_colour(value: float) -> str:
    """The colour of nodes that raise an output, or of those that lower it."""
    return POSITIVE if value > 0 else NEGATIVE


def compute_opacities(values: Sequence[float]) -> list[float]:
    """The magnitude of each value as a share of the largest."""
    largest = max(map(abs, values), default=0.0) or 1.0
    return [abs(value) / largest for value in values]


def _draw_with_rdkit(caption: str, molecule: Any, values: Sequence[float], opacities: Sequence[float]) -> Markup:
    from matplotlib.colors import to_rgba
    from rdkit.Chem.Draw.rdMolDraw2D import MolDraw2DSVG

    pen, atoms = MolDraw2DSVG(420, 300), list(range(len(values)))
    options = pen.drawOptions()
    options.useBWAtomPalette()
    options.clearBackground, options.continuousHighlight, options.highlightRadius = False, False, 0.38
    colours = {i: to_rgba(value_colour(v), a) for i, (v, a) in enumerate(zip(values, opacities, strict=True))}
    pen.DrawMolecule(molecule, highlightAtoms=atoms, highlightAtomColors=colours, highlightBonds=[])
    pen.FinishDrawing()
    inner = pen.GetDrawingText().split("<!-- END OF HEADER -->")[1].rsplit("</svg>", 1)[0]
    inner = re.sub(r"<!--.*?-->| class='[^']*'", "", inner, flags=re.DOTALL).replace("#000000", INK)
    inner = re.sub(r"(#[0-9A-F]{6})([0-9A-F]{2})\b", _mix_with_transparent, inner)
    opening = f'<svg viewBox="0 0 420 300" role="img" aria-label="{escape(caption)}" class="molecule">'
    return Markup(opening + to_css_variables(inner) + "</svg>")


def _mix_with_transparent(found: re.Match[str]) -> str:
    """A colour with opacity, ``#rrggbbaa``, in CSS that takes a variable as the colour."""
    return f"color-mix(in srgb, {found[1]} {int(found[2], 16) / 2.55:.0f}%, transparent)"


# --- parts of drawings ---


def _size(positions: Float[np.ndarray, "nodes 2"]) -> tuple[float, float]:
    """Width and height of a drawing with a margin; never a very small one."""
    width, height = np.maximum(np.ptp(positions, axis=0) + 36, (280, 200)).tolist()
    return width, height


def _draw_structure(
    ax: "Axes", graph: DrawnGraph, radii: Sequence[float], symbols: Sequence[str]
) -> list[tuple[float, float]]:
    """Bonds, an empty disc for each node, and symbols above what is drawn on the discs; the positions of the nodes."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle

    at = graph.positions()
    (width, height), (x, y) = _size(at), (at.min(axis=0) + np.ptp(at, axis=0) / 2).tolist()
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))  # a pixel for each unit, y pointing down
    ax.set(xlim=(x - width / 2, x + width / 2), ylim=(y + height / 2, y - height / 2))
    ax.set_axis_off()
    _draw_bonds(ax, at, graph.bonds)
    positions = [(x, y) for x, y in at.tolist()]
    discs = [Circle(position, radius) for position, radius in zip(positions, radii, strict=True)]
    ax.add_collection(PatchCollection(discs, facecolor=CARD, linewidth=0, zorder=2))
    for symbol, (x, y) in zip(symbols, positions, strict=True):
        if symbol:
            ax.text(x, y + 4, symbol, ha="center", fontsize=11, fontweight="bold", zorder=4)
    return positions


def _draw_bonds(ax: "Axes", at: Float[np.ndarray, "nodes 2"], bonds: Sequence[tuple[int, int, str]]) -> None:
    """A line for each bond, two or three where its kind asks for them."""
    from matplotlib.collections import LineCollection

    neighbours = list_neighbours(len(at), [(i, j) for i, j, _ in bonds])
    solid, dashed = [], []
    for i, j, kind in bonds:
        ring = find_smallest_ring(i, j, neighbours)
        along = (at[j] - at[i]) / max(1e-9, float(np.hypot(*(at[j] - at[i]))))
        across = np.array([-along[1], along[0]])
        if ring and across @ (at[ring].mean(axis=0) - at[i]) < 0:
            across = -across  # towards the inside of the ring
        is_inside = kind == "aromatic" or (kind == "double" and ring)
        offsets = {"triple": (-4.5, 0.0, 4.5), "double": (-2.5, 2.5)}.get(kind, (0.0,))
        for number, offset in enumerate((0.0, 5.0) if is_inside else offsets):
            line = [at[i] + across * offset, at[j] + across * offset]
            (dashed if kind == "aromatic" and number else solid).append(line)
    for lines, style in ((solid, "-"), (dashed, (0, (3.5, 3)))):
        ax.add_collection(LineCollection(lines, colors=SOFT, linewidths=1.8, linestyles=[style], zorder=1))
