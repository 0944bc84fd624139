"""Graphs drawn with what is said of their nodes: molecules, syntax trees, other graphs. Inline SVG and HTML."""

import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from jaxtyping import Float

from mnagt.experiments.structures import BOND, around, bond_lines, layout, pie
from mnagt.experiments.svg import Markup, drawing, element, text

FOR, AGAINST = (0x00, 0x69, 0xAD), (0xC9, 0x5A, 0x00)
"""Colours of what speaks for an answer and against it."""
LARGEST = 120
"""Nodes up to which a graph is drawn."""
MOST_EDGES = 400


def tint(value: float, most: float) -> tuple[float, float, float]:
    """White for nothing, the full colour for ``most`` and more; red, green and blue from 0 to 1."""
    share = min(1.0, abs(value) / most) if most else 0.0
    red, green, blue = (1 - share * (1 - channel / 255) for channel in (FOR if value > 0 else AGAINST))
    return red, green, blue


def css(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in colour)


def is_readable(smiles: str, atoms: int) -> bool:
    """Whether RDKit is there, reads this and finds as many atoms: its versions differ on a few molecules."""
    if find_spec("rdkit") is None:
        return False
    from rdkit.Chem import MolFromSmiles
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        found = MolFromSmiles(smiles)
    return found is not None and found.GetNumAtoms() == atoms


def molecule_places(smiles: str) -> Float[np.ndarray, "atoms 2"]:
    """Where RDKit puts the atoms, bonds about 1 long."""
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdDepictor import Compute2DCoords

    molecule = MolFromSmiles(smiles)
    Compute2DCoords(molecule)
    at = molecule.GetConformer().GetPositions()[:, :2] * (1, -1)
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()])
    return at / np.hypot(*(at[ends[:, 0]] - at[ends[:, 1]]).T).mean() if len(ends) else at


def molecule(title: str, smiles: str, values: Sequence[float]) -> Markup:
    """RDKit's drawing, its atoms coloured by ``values``."""
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.Draw.rdMolDraw2D import MolDraw2DSVG

    most, atoms = max(map(abs, values), default=0.0), list(range(len(values)))
    pen = MolDraw2DSVG(420, 300)
    options = pen.drawOptions()
    options.useBWAtomPalette()
    options.clearBackground, options.continuousHighlight, options.highlightRadius = False, False, 0.38
    pen.DrawMolecule(
        MolFromSmiles(smiles),
        highlightAtoms=atoms,
        highlightAtomColors={i: tint(value, most) for i, value in enumerate(values)},
        highlightBonds=[],
    )
    pen.FinishDrawing()
    inner = pen.GetDrawingText().split("<!-- END OF HEADER -->")[1].rsplit("</svg>", 1)[0]
    inner = re.sub(r"<!--.*?-->|class='[^']*'", "", inner, flags=re.DOTALL)
    return drawing(title, (0, 0, 420, 300), Markup(inner), class_="paper")


def tinted(
    title: str,
    names: Sequence[str],
    bonds: Sequence[tuple[int, int, str]],
    values: Sequence[float],
    at: Float[np.ndarray, "nodes 2"] | None = None,
) -> Markup:
    """A graph whose nodes are coloured by ``values``."""
    at = BOND * (layout(len(names), [(i, j) for i, j, _ in bonds]) if at is None else at)
    most, parts = max(map(abs, values), default=0.0), [element("g", *bond_lines(at, bonds), class_="bonds")]
    for i, ((x, y), name, value) in enumerate(zip(at.tolist(), names, values, strict=True)):
        tip = element("title", f"{name} (node {i}): {value:+.3f}")
        parts.append(element("circle", tip, cx=x, cy=y, r=13, class_="node", style=f"fill:{css(tint(value, most))}"))
        parts.append(text(x, y + 4, name[:3], class_="ink"))
    return drawing(title, around(at), *parts, class_="structure")


def outline(
    names: Sequence[str],
    depths: Sequence[int],
    values: Sequence[float],
    layers: Sequence[Sequence[Sequence[float]]],
    colours: Sequence[str],
) -> Markup:
    """A tree, a line for each node in depth-first order: a bar for its value, pies for its shares, its name."""
    most, lines = max(map(abs, values), default=0.0), []
    for i, (name, depth, value) in enumerate(zip(names, depths, values, strict=True)):
        bar = element("i", class_="bar", style=f"background:{css(tint(value, most))}", title=f"{value:+.3f}")
        pies = [
            element("svg", pie(7, 7, 7, layer[i], colours), viewBox="0 0 14 14", class_=f"dot layer layer-{n}")
            for n, layer in enumerate(layers)
        ]
        lines.append(element("li", bar, *pies, element("span", name), style=f"--depth:{depth}"))
    return element("ol", *lines, class_="outline", tabindex=0)  # keys scroll it


def heat(title: str, weights: Float[np.ndarray, "rows columns"]) -> Markup:
    """A matrix as a picture, the largest entry in full colour."""
    rows, columns = weights.shape
    pixels = np.empty((rows, columns, 4), np.uint8)
    pixels[..., :3] = FOR
    pixels[..., 3] = np.round(255 * weights / max(float(weights.max(initial=0)), 1e-12))
    source = f"data:image/png;base64,{b64encode(png(pixels)).decode()}"
    image = element("image", href=source, width=columns, height=rows, style="image-rendering:pixelated")
    return drawing(title, (0, 0, columns, rows), image, class_="heat")


def png(pixels: np.ndarray) -> bytes:
    """Pixels (red, green, blue, opacity) as a PNG file."""
    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
