"""Small graphs drawn as chemists draw molecules, as inline SVG: bonds of one length, rings that look like rings."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float

from mnagt.experiments.svg import Markup, drawing, element, percent, text

BOND = 40
"""Length of a bond in a drawing; atoms measure themselves by it."""


def pie(x: float, y: float, radius: float, shares: Sequence[float], colours: Sequence[str], hole: float = 0) -> Markup:
    """Shares of a disc, clockwise from the top; with a hole, of a ring."""
    thick = radius - hole
    ring = {"cx": x, "cy": y, "r": hole + thick / 2, "fill": "none", "stroke_width": thick, "pathLength": 1}
    parts, start = [], 0.0
    for share, colour in zip(shares, colours, strict=True):
        # An arc is a dash of a circle of length 1: full circles and empty slices need no case of their own.
        dash = {"stroke_dasharray": f"{share:.4f} 1", "stroke_dashoffset": f"{-start:.4f}"}
        parts.append(element("circle", **ring, **dash, stroke=colour))
        start += share
    return element("g", *parts, transform=f"rotate(-90 {x:.5g} {y:.5g})", class_="pie")


def structure(
    title: str,
    atoms: Sequence[str],
    bonds: Sequence[tuple[int, int, str]],
    layers: Sequence[Sequence[Sequence[float]]],
    names: Sequence[str],
    colours: Sequence[str],
    at: Float[np.ndarray, "atoms 2"] | None = None,
) -> Markup:
    """A molecule whose atoms are pies. For each layer and atom there are shares, one a name; layer i has class layer-i.

    Carbon goes without its symbol, as in chemistry. Bonds are single, double, triple or aromatic; any other is drawn
    as single. Atoms lie where ``at`` says, bonds about 1 long, or else where ``layout`` puts them.
    """
    at = BOND * (layout(len(atoms), [(i, j) for i, j, _ in bonds]) if at is None else at)
    parts = [element("g", *bond_lines(at, bonds), class_="bonds")]
    radii = [10.5 if atom == "C" else 14.0 for atom in atoms]
    for number, shares in enumerate(layers):
        pies = []
        for i, (atom, (x, y), radius) in enumerate(zip(atoms, at.tolist(), radii, strict=True)):
            said = ", ".join(f"{name} {percent(share)}" for name, share in zip(names, shares[i], strict=True))
            tip = element("title", f"{atom} (atom {i + 1}): {said}")
            disc = element("circle", cx=x, cy=y, r=radius + 1.5, class_="atom")
            pies.append(element("g", tip, disc, pie(x, y, radius, shares[i], colours, 0 if atom == "C" else 9.5)))
        parts.append(element("g", *pies, class_=f"layer layer-{number}"))
    for atom, (x, y), radius in zip(atoms, at.tolist(), radii, strict=True):
        if not layers:
            parts.append(element("circle", cx=x, cy=y, r=3 if atom == "C" else radius - 3, class_="atom"))
        if atom != "C":
            parts.append(text(x, y + 4, atom, class_="symbol"))
    return drawing(title, around(at), *parts, class_="structure")


def around(at: Float[np.ndarray, "atoms 2"]) -> tuple[float, float, float, float]:
    """The rectangle (x, y, width, height) that shows all atoms; never a very small one."""
    margin = 18
    least, size = at.min(axis=0) - margin, np.ptp(at, axis=0) + 2 * margin
    wide = np.maximum(size, (280, 200))
    x, y, width, height = (*(least - (wide - size) / 2).tolist(), *wide.tolist())
    return x, y, width, height


def bond_lines(at: Float[np.ndarray, "atoms 2"], bonds: Sequence[tuple[int, int, str]]) -> list[Markup]:
    """A line for each bond, two or three where its kind asks for them."""
    near, lines = _neighbours(len(at), [(i, j) for i, j, _ in bonds]), []
    for i, j, kind in bonds:
        ring = smallest_ring(i, j, near)
        along = (at[j] - at[i]) / max(1e-9, float(np.hypot(*(at[j] - at[i]))))
        across = np.array([-along[1], along[0]])
        if ring and across @ (at[ring].mean(axis=0) - at[i]) < 0:
            across = -across  # towards the inside of the ring
        if kind == "triple":
            offsets = (-4.5, 0.0, 4.5)
        elif kind == "aromatic" or (kind == "double" and ring):
            offsets = (0.0, 5.0)
        else:
            offsets = (-2.5, 2.5) if kind == "double" else (0.0,)
        for number, offset in enumerate(offsets):
            (a, b), (c, d) = at[i] + across * offset, at[j] + across * offset
            dash = "3.5 3" if kind == "aromatic" and number else None
            lines.append(element("line", x1=float(a), y1=float(b), x2=float(c), y2=float(d), stroke_dasharray=dash))
    return lines


def layout(count: int, bonds: Sequence[tuple[int, int]]) -> Float[np.ndarray, "atoms 2"]:
    r"""Places for atoms, bonds about 1 long; the same for the same molecule, always.

    Stress majorisation: the least :math:`\sum_{ij} t_{ij}^{-3} (|x_i - x_j| - t_{ij})^2` found from a few starts, where
    :math:`t_{ij}` is the chord of a regular polygon in a small ring and the length of a zigzag of 120° elsewhere.
    """
    if count < 2:
        return np.zeros((count, 2))
    target = _ideal_distances(count, bonds)
    weight = target**-3
    np.fill_diagonal(weight, 0)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    best, least = np.zeros((count, 2)), math.inf
    for seed in range(8):
        x = _spread(target) + 0.3 * np.random.default_rng(seed).normal(size=(count, 2))
        for _ in range(250):
            pull = -weight * target / np.maximum(_distances(x), 1e-9)
            np.fill_diagonal(pull, 0)
            np.fill_diagonal(pull, -pull.sum(axis=1))
            x = inverse @ (pull @ x)
        stress = float((weight * (_distances(x) - target) ** 2).sum())
        if stress < least - 1e-6:
            best, least = x, stress
    return _upright(best, bonds)


def _distances(x: Float[np.ndarray, "atoms 2"]) -> Float[np.ndarray, "atoms atoms"]:
    return np.hypot(*(x[:, None] - x[None]).T)


def _ideal_distances(count: int, bonds: Sequence[tuple[int, int]]) -> Float[np.ndarray, "atoms atoms"]:
    """How far atoms would like to be from each other; 1 on the diagonal. Parts that do not hang together stay apart."""
    steps = np.full((count, count), np.inf)
    np.fill_diagonal(steps, 0)
    for i, j in bonds:
        steps[i, j] = steps[j, i] = 1
    for k in range(count):
        steps = np.minimum(steps, steps[:, k, None] + steps[None, k])
    steps[np.isinf(steps)] = steps[np.isfinite(steps)].max() + 1
    target = np.sqrt(0.75 * steps**2 + 0.25 * (steps % 2))
    near = _neighbours(count, bonds)
    for i, j in bonds:
        ring = smallest_ring(i, j, near)
        for a, first in enumerate(ring):
            for b, second in enumerate(ring):
                target[first, second] = math.sin(math.pi * abs(a - b) / len(ring)) / math.sin(math.pi / len(ring))
    np.fill_diagonal(target, 1)
    return np.maximum(target, 1)


def _neighbours(count: int, bonds: Iterable[tuple[int, int]]) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in range(count)]
    for i, j in bonds:
        near[i].append(j)
        near[j].append(i)
    return near


def smallest_ring(i: int, j: int, neighbours: Sequence[Sequence[int]], most: int = 8) -> list[int]:
    """Atoms of the smallest ring through the bond i-j, in order; none if it has more than ``most``."""
    paths = [[i]]
    seen = {i}
    while paths and len(paths[0]) < most:
        longer = []
        for path in paths:
            for atom in neighbours[path[-1]]:
                if atom == j and len(path) > 1:
                    return [*path, j]
                if atom not in seen and atom != j:
                    seen.add(atom)
                    longer.append([*path, atom])
        paths = longer
    return []


def _spread(target: Float[np.ndarray, "atoms atoms"]) -> Float[np.ndarray, "atoms 2"]:
    """Classical scaling: the plane in which points so far apart spread most."""
    squares = target**2
    np.fill_diagonal(squares, 0)
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))


def _upright(x: Float[np.ndarray, "atoms 2"], bonds: Sequence[tuple[int, int]]) -> Float[np.ndarray, "atoms 2"]:
    """Turned so that it lies wide, and its bonds at multiples of 30° as far as they agree."""
    x = x - x.mean(axis=0)
    x = x @ np.linalg.svd(x, full_matrices=False)[2].T
    if bonds:
        first, second = np.array(bonds).T
        angles = np.arctan2(*(x[second] - x[first]).T[::-1])
        turn = np.angle(np.exp(12j * angles).sum()) / 12
        x = x @ np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    return x
