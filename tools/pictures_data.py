"""Pictures of what happens to data: packing, padding, splits, CUDA graphs, calibration."""

import json
import math
from pathlib import Path

from svg import Canvas

from mnagt import load_dataset

RESULTS = Path(__file__).parents[1] / "results"
BATCH = 32
PARTS = {"train": "series-0", "valid": "series-2", "test": "series-1"}


def draw_packed() -> Canvas:
    """Graphs of different sizes end to end in flat tensors."""
    canvas = Canvas(700, 300, "Three graphs as flat tensors with pointers, cut into a batch by index arithmetic")
    canvas.text(24, 34, "All graphs of a data set in a few flat tensors", size=18, bold=True)
    sizes, colours = [4, 7, 3, 6], ["series-0", "series-1", "series-2", "series-3"]
    for row, (name, per) in enumerate((("nodes", 1), ("edges", 1.6))):
        y, x = 78 + 58 * row, 110.0
        canvas.text(24, y + 20, name, mono=True, size=14)
        for size, colour in zip(sizes, colours, strict=True):
            for _ in range(round(size * per)):
                canvas.rect(x, y, 15, 28, fill=colour, stroke="card")
                x += 15
            canvas.line((x, y - 6), (x, y + 34), colour="ink", width=1.5)
    canvas.text(24, 212, "ptr", mono=True, size=14)
    x = 110.0
    for value in (0, 4, 11, 14, 20):
        canvas.text(x + 15 * value, 212, str(value), anchor="middle", size=13, colour="soft", mono=True)
    canvas.line((24, 226), (676, 226), colour="line")
    canvas.text(24, 262, "batch([3, 1])", mono=True, size=14)
    x = 160.0
    for index in (3, 1):
        for _ in range(sizes[index]):
            canvas.rect(x, 244, 15, 28, fill=colours[index], stroke="card")
            x += 15
    canvas.text(x + 16, 264, "no object per graph, no padding", size=14, colour="soft")
    return canvas


def draw_padding() -> Canvas:
    """What padding to the largest graph wastes in a batch of molecules that come with the package."""
    sizes = sorted(load_dataset("MUTAG").sizes[:BATCH].tolist(), reverse=True)
    largest = sizes[0]
    slots, pairs = 1 - sum(sizes) / (BATCH * largest), 1 - sum(n * n for n in sizes) / (BATCH * largest**2)
    canvas = Canvas(720, 330, "A padded batch of molecules: most slots and pairs hold nothing")
    canvas.text(24, 34, f"{BATCH} molecules of MUTAG in one batch", size=18, bold=True)
    step, height = 21.0, 150
    for i, size in enumerate(sizes):
        x, full = 26 + i * step, height * size / largest
        canvas.rect(x, 62, step - 4, height - full, fill="series-1", opacity=0.28)
        canvas.rect(x, 62 + height - full, step - 4, full, fill="series-0")
    canvas.text(24, 236, f"Each column is a molecule, padded to {largest} atoms.", size=14, colour="soft")
    for row, (words, share) in enumerate((("atom slots", slots), ("pairs of atoms", pairs))):
        y = 252 + 36 * row
        canvas.rect(26, y, 300 * (1 - share), 20, fill="series-0")
        canvas.rect(26 + 300 * (1 - share), y, 300 * share, 20, fill="series-1", opacity=0.28)
        canvas.text(340, y + 15, f"{100 * share:.0f} % of {words} are padding", size=15)
    return canvas


def draw_splits() -> Canvas:
    """A random split puts relatives on both sides; a scaffold split does not."""
    canvas = Canvas(720, 330, "Random split and scaffold split of the same molecules")
    canvas.text(24, 34, "Where do a molecule’s relatives go?", size=18, bold=True)
    families = [7, 6, 5, 4, 3, 3, 2]
    whole = ["train", "train", "train", "train", "valid", "test", "test"]
    order = ["train", "train", "test", "train", "valid", "train", "train", "train", "test", "train"]
    for panel, title in enumerate(("random split", "scaffold split")):
        left, drawn, leaks = 24 + 348 * panel, 0, 0
        canvas.rect(left, 52, 324, 216, stroke="line", radius=8)
        canvas.text(left + 16, 78, title, size=15, bold=True)
        for family, size in enumerate(families):
            cx, cy = left + (58, 150, 246, 66, 152, 220, 284)[family], (132, 128, 130, 218, 214, 222, 200)[family]
            members = []
            for i in range(size):
                angle, reach = 2.4 * i, 10.5 * math.sqrt(i)
                part = order[(3 * drawn) % len(order)] if panel == 0 else whole[family]
                members.append((cx + reach * math.cos(angle), cy + reach * math.sin(angle), part))
                drawn += 1
            trained = [member for member in members if member[2] == "train"]
            for x, y, part in members:
                if part == "test" and trained:
                    leaks += 1
                    canvas.line((x, y), trained[0][:2], colour="bad", width=2, dash="3 3")
            for x, y, part in members:
                canvas.circle(x, y, 7, fill=PARTS[part], stroke="card")
        tested = sum(order[(3 * i) % len(order)] == "test" for i in range(sum(families)))
        note = f"{leaks} of {tested} in test have a relative in train" if panel == 0 else "none in test has one"
        canvas.text(left + 16, 256, note, size=14, colour="bad" if panel == 0 else "good")
    for i, (part, colour) in enumerate(PARTS.items()):
        canvas.circle(32 + 110 * i, 294, 7, fill=colour)
        canvas.text(46 + 110 * i, 299, {"valid": "validation"}.get(part, part), size=14)
    canvas.text(696, 299, "A sketch. A cluster: molecules with one scaffold", size=13, colour="soft", anchor="end")
    return canvas


def draw_cuda_graphs() -> Canvas:
    """A step launched kernel by kernel, and the same step replayed."""
    canvas = Canvas(720, 320, "A training step launched kernel by kernel, and the same step replayed as a CUDA graph")
    canvas.text(24, 34, "One launch instead of hundreds", size=18, bold=True)

    def lane(y: float, words: str) -> None:
        canvas.text(24, y + 17, words, size=14, colour="soft")
        canvas.line((78, y + 26), (696, y + 26), colour="line")

    canvas.text(24, 68, "eager: Python launches every kernel, and the GPU waits for it", size=15)
    lane(78, "CPU")
    lane(110, "GPU")
    for i in range(11):
        x = 84 + 55 * i
        canvas.rect(x, 80, 44, 20, fill="series-1", radius=3)
        canvas.rect(x + 40, 112, 15, 20, fill="series-0", radius=3)
        canvas.line((x + 44, 100), (x + 44, 112), colour="soft", width=1)
    canvas.text(24, 186, "CUDA graph: captured once, then replayed with a new batch in the same memory", size=15)
    lane(196, "CPU")
    lane(228, "GPU")
    canvas.rect(84, 198, 22, 20, fill="series-1", radius=3)
    canvas.line((106, 218), (106, 230), colour="soft", width=1)
    for i in range(11):
        canvas.rect(104 + 16 * i, 230, 15, 20, fill="series-0", radius=3)
    canvas.text(296, 245, "the next step can begin", size=14, colour="good")
    canvas.text(
        24,
        296,
        "A sketch. For it, a batch is padded to one of a few fixed shapes.",
        size=13,
        colour="soft",
    )
    return canvas


def draw_calibration() -> Canvas:
    """A reliability diagram before and after temperature scaling, as measured."""
    found = json.loads((RESULTS / "coverage-cpu.json").read_text(encoding="utf-8"))["figures"]["one model"]
    canvas = Canvas(720, 340, "Reliability before and after temperature scaling")
    canvas.text(24, 34, "Is a class predicted with 90 % right nine times out of ten?", size=18, bold=True)
    for panel, (title, key) in enumerate((("before", "before"), ("after calibration", "after"))):
        left, top, side = 78 + 350 * panel, 66, 200
        colour = f"series-{panel + 1}"
        canvas.rect(left, top, side, side, stroke="line")
        canvas.line((left, top + side), (left + side, top), colour="soft", dash="4 4")
        bins = found[key]["bins"]
        places = [(left + side * (2 * b["confidence"] - 1), top + side * (2 - 2 * b["accuracy"])) for b in bins]
        canvas.line(*places, colour=colour, width=2)
        for (x, y), each in zip(places, bins, strict=True):
            canvas.circle(x, y, 2 + 0.3 * math.sqrt(each["graphs"]), fill=colour)
        canvas.text(left + 12, top + 24, title, size=15, bold=True)
        canvas.text(left + 12, top + 44, f"ECE {100 * found[key]['ece']:.1f} %", size=14, colour="soft")
        for share in (0.5, 1.0):
            x, y, words = left + side * (2 * share - 1), top + side * (2 - 2 * share), f"{100 * share:.0f} %"
            canvas.text(x, top + side + 20, words, size=13, anchor="middle", colour="soft")
            canvas.text(left - 8, y + 5, words, size=13, anchor="end", colour="soft")
        canvas.text(left + side / 2, top + side + 38, "predicted probability", size=13, anchor="middle", colour="soft")
    words = "Height: share that is right. Area of a dot: number of graphs. Measured: GIN on NCI1, 4 splits."
    canvas.text(24, 330, words, size=12, colour="soft")
    return canvas
