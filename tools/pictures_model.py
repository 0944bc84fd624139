"""Pictures of how a model looks at a graph: the idea, a layer, learned neighbourhoods, WL colours."""

import math

import numpy as np
from svg import Canvas, Point

KERNELS = ("series-0", "series-1", "series-2")
# A small molecule: a ring of six with two tails; positions in a box of 150 x 130.
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (2, 6), (6, 7), (6, 8), (5, 9)]
KINDS = "CCCCCCNOOC"
PLACES: list[Point] = [
    *(
        (48 + 30 * math.cos(math.pi / 3 * i + math.pi / 6), 62 + 30 * math.sin(math.pi / 3 * i + math.pi / 6))
        for i in (4, 5, 0, 1, 2, 3)
    ),
    (104, 95),
    (128, 74),
    (122, 120),
    (2, 30),
]
VIEWER = 6
"""The node whose attention is drawn."""


def normalise_adjacency() -> np.ndarray:
    """The normalised adjacency with self loops."""
    adjacency = np.eye(len(KINDS))
    for a, b in EDGES:
        adjacency[a, b] = adjacency[b, a] = 1
    root = adjacency.sum(1) ** -0.5
    return adjacency * root[:, None] * root


def compute_attention(hops: int) -> np.ndarray:
    """Weights of the viewer through a neighbourhood: softmax of cosines of what lies ``hops`` steps around nodes."""
    features = np.array([[kind == each for each in "CNO"] for kind in KINDS], dtype=float)
    around = np.linalg.matrix_power(normalise_adjacency(), hops) @ features
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    scores = 5 * around @ around[VIEWER]
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def draw_molecule(
    canvas: Canvas, x: float, y: float, colours: list[str], *, radius: float = 10, labels: bool = True
) -> None:
    for a, b in EDGES:
        (xa, ya), (xb, yb) = PLACES[a], PLACES[b]
        canvas.line((x + xa, y + ya), (x + xb, y + yb), colour="soft", width=1.5)
    for (px, py), kind, colour in zip(PLACES, KINDS, colours, strict=True):
        canvas.circle(x + px, y + py, radius, fill="card", stroke=None)
        canvas.circle(x + px, y + py, radius, fill=colour, stroke="soft", opacity=1 if colour != "card" else None)
        if labels:
            canvas.text(
                x + px,
                y + py + 4,
                kind,
                size=11,
                anchor="middle",
                colour="ink" if colour in ("card", "line") else "card",
            )


NEIGHBOURHOODS = [("the nodes themselves", "X", 0.18), ("within one hop", "ÂX", 0.30), ("within two hops", "Â²X", 0.52)]
"""What kernel k compares, its input, and its weight α in the picture."""


def draw_idea() -> Canvas:
    """A node attends through three neighbourhoods and weighs what they bring."""
    canvas = Canvas(720, 400, "A node attends to all others through three neighbourhoods and weighs what they bring")
    canvas.text(24, 34, "A node attends to all others through three neighbourhoods", size=18, bold=True)
    for k, (_, _, share) in enumerate(NEIGHBOURHOODS):
        x = 36 + 228 * k
        _draw_neighbourhood(canvas, k, x, 84, 214, 206)
        canvas.arrow((x + 93, 266), (x + 93, 296), KERNELS[k], 1 + 8 * share)
        canvas.text(x + 106, 287, f"α = {share:.2f}", size=14, colour=KERNELS[k], bold=True)
    _draw_shares(canvas, 298, 676)
    canvas.text(24, 358, "It sums the three results with weights α, which it computes from them.", size=15)
    note = "Line widths: attention of this nitrogen, computed for this molecule. The weights α are an example."
    canvas.text(24, 382, note, size=13, colour="soft")
    return canvas


def draw_idea_narrow() -> Canvas:
    """The same for a phone: one neighbourhood below the other."""
    canvas = Canvas(360, 760, "A node attends to all others through three neighbourhoods and weighs what they bring")
    canvas.text(22, 32, "A node attends to all others", size=18, bold=True)
    canvas.text(22, 54, "through three neighbourhoods", size=18, bold=True)
    for k, (_, _, share) in enumerate(NEIGHBOURHOODS):
        y = 96 + 190 * k
        _draw_neighbourhood(canvas, k, 36, y, 316, 180)
        canvas.text(246, y + 82, f"α = {share:.2f}", size=16, colour=KERNELS[k], bold=True)
        canvas.arrow((272, y + 94), (272, y + 94 + 36), KERNELS[k], 1 + 8 * share)
    _draw_shares(canvas, 650, 316)
    canvas.text(22, 706, "It sums the three results with weights α.", size=15)
    canvas.text(22, 728, "Line widths: attention of this nitrogen, computed", size=13, colour="soft")
    canvas.text(22, 746, "for this molecule. The weights are an example.", size=13, colour="soft")
    return canvas


def _draw_neighbourhood(canvas: Canvas, k: int, x: float, y: float, width: float, height: float) -> None:
    """The molecule, with the attention of its nitrogen through kernel k."""
    words, formula, _ = NEIGHBOURHOODS[k]
    canvas.rect(x - 14, y - 26, width, height, stroke="line", radius=8)
    canvas.rect(x - 14, y - 26, width, 4, fill=KERNELS[k], radius=2)
    canvas.text(x, y + 2, words, size=14)
    canvas.text(x + width - 28, y + 2, formula, size=14, anchor="end", colour="soft", mono=True)
    for node, weight in enumerate(compute_attention(k)):
        if node != VIEWER:
            ends = [(x + 28 + px, y + 22 + py) for px, py in (PLACES[VIEWER], PLACES[node])]
            canvas.line(*ends, colour=KERNELS[k], width=1 + 26 * weight, opacity=0.55)
    draw_molecule(canvas, x + 28, y + 22, [KERNELS[k] if n == VIEWER else "card" for n in range(len(KINDS))])


def _draw_shares(canvas: Canvas, y: float, width: float) -> None:
    """A bar of the weights of the kernels."""
    left = 22.0
    for k, (_, _, share) in enumerate(NEIGHBOURHOODS):
        middle = left + width * share / 2
        canvas.rect(left, y, width * share, 30, fill=KERNELS[k])
        canvas.text(middle, y + 20, f"α{'₀₁₂'[k]} z{'⁰¹²'[k]}", size=15, anchor="middle", colour="card", bold=True)
        left += width * share


def draw_layer() -> Canvas:
    """What happens in a layer."""
    canvas = Canvas(680, 470, "A layer: norm, kernels, one attention call, mixer, residual, feed-forward network")
    canvas.text(24, 34, "A layer", size=18, bold=True)

    def box(x: float, y: float, width: float, words: str, note: str = "", colour: str = "line") -> None:
        canvas.rect(x, y, width, 40, fill="card", stroke=colour, radius=7)
        canvas.text(x + width / 2, y + (25 if not note else 18), words, anchor="middle", size=15)
        if note:
            canvas.text(x + width / 2, y + 34, note, anchor="middle", size=12, colour="soft")

    canvas.text(250, 62, "X  [nodes, dim]", anchor="middle", mono=True, size=14)
    canvas.arrow((250, 70), (250, 90))
    box(60, 90, 380, "norm")
    for k, words in enumerate(("kernel 0", "kernel 1", "kernel c")):
        x = 60 + 135 * k
        canvas.arrow((x + 55, 130), (x + 55, 156))
        box(x, 156, 110, words, ("X", "ÂX", "ÂᶜX")[k], KERNELS[k])
        canvas.arrow((x + 55, 196), (x + 55, 222))
        canvas.arrow((x + 55, 262), (x + 55, 288))
    canvas.text(318, 180, "…", anchor="middle", colour="soft")
    box(60, 222, 380, "one attention call", "kernels folded into heads, no padding")
    box(60, 288, 380, "mixer", "each node weighs its own kernels")
    canvas.arrow((250, 328), (250, 352))
    canvas.circle(250, 364, 12, fill="card", stroke="soft")
    canvas.text(250, 369, "+", anchor="middle")
    canvas.line((250, 78), (540, 78), (540, 190))
    box(460, 190, 160, "residual", "X, ÂX or a convolution")
    canvas.line((540, 230), (540, 364))
    canvas.arrow((540, 364), (262, 364))
    canvas.arrow((250, 376), (250, 398))
    box(60, 398, 380, "norm, feed-forward network, residual")
    canvas.arrow((250, 438), (250, 460))
    return canvas


def draw_spectral() -> Canvas:
    """Chebyshev polynomials of the adjacency on a ring: how far each head looks at first, and a learned sum."""
    canvas = Canvas(
        720, 300, "Chebyshev polynomials of the normalised adjacency on a ring of twenty nodes, and a sum of them"
    )
    canvas.text(24, 34, "A head learns at which distance it attends", size=18, bold=True)
    n = 20
    adjacency = np.roll(np.eye(n), 1, axis=1) / 2 + np.roll(np.eye(n), -1, axis=1) / 2
    terms = [np.eye(n), adjacency]
    while len(terms) <= 10:
        terms.append(2 * adjacency @ terms[-1] - terms[-2])
    learned = 0.5 * terms[0] + 0.4 * terms[1] - 0.6 * terms[5] + 1.2 * terms[10]
    panels = [
        ("T₁", "1 hop", terms[1]),
        ("T₅", "5 hops", terms[5]),
        ("T₁₀", "10 hops", terms[10]),
        ("", "a learned sum", learned),
    ]
    for i, (name, words, matrix) in enumerate(panels):
        cx, cy, r = 96 + 176 * i, 150, 62
        for node in range(n):
            angle = 2 * math.pi * node / n - math.pi / 2
            x, y, value = cx + r * math.cos(angle), cy + r * math.sin(angle), matrix[0, node]
            colour = "series-0" if value > 0 else "series-1"
            canvas.circle(x, y, 5, fill="card", stroke="line")
            if abs(value) > 1e-9:
                canvas.circle(x, y, 4 + 6 * min(1, abs(value)), fill=colour, opacity=0.9)
        canvas.circle(cx, cy - r, 14, stroke="ink")
        canvas.text(cx, cy + 5, name or "B", anchor="middle", size=17, bold=True)
        canvas.text(cx, 244, words, anchor="middle", size=15)
    canvas.text(
        24,
        276,
        "What is added to the scores of the ringed node: blue is positive, orange negative, size the amount.",
        size=13,
        colour="soft",
    )
    return canvas


def draw_wl() -> Canvas:
    """WL iterations on the small molecule, and its counts."""
    canvas = Canvas(720, 300, "Three WL iterations on a molecule, and the counts of its colours")
    canvas.text(24, 34, "WL colours: the same colour, the same subtree", size=18, bold=True)
    neighbours = [[b for a, b in EDGES if a == n] + [a for a, b in EDGES if b == n] for n in range(len(KINDS))]
    names: list[str] = list(KINDS)
    palette = ("series-0", "series-1", "series-2", "series-3", "soft", "ink", "line")
    for iteration in range(3):
        order = {name: i for i, name in enumerate(dict.fromkeys(names))}
        colours = [palette[order[name] % len(palette)] for name in names]
        x = 36 + 236 * iteration
        canvas.text(x, 70, f"after {iteration} iterations" if iteration != 1 else "after 1 iteration", size=15)
        draw_molecule(canvas, x + 20, 84, colours)
        for i, (name, colour) in enumerate(order.items()):
            canvas.circle(x + 8 + 26 * i, 246, 8, fill=palette[colour % len(palette)])
            canvas.text(x + 8 + 26 * i, 269, str(names.count(name)), anchor="middle", size=14)
        names = [f"{names[n]}({''.join(sorted(names[m] for m in neighbours[n]))})" for n in range(len(KINDS))]
    canvas.text(
        24, 291, "Below: how many atoms have each colour. These counts are the features.", size=13, colour="soft"
    )
    return canvas
