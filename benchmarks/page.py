"""What the kept figures say, as one HTML page with pictures, beside the targets that the benchmarks themselves set.

Nothing is timed here. The JSON files that the benchmarks wrote are read from a folder; into it go ``benchmarks.html``,
which needs nothing from outside, and its pictures as SVG in ``benchmarks/``. A file that is not there is named on the
page; a variant without a figure is shown with the reason.
"""

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import attention
import attention_gpu
import batching
import epoch
import imports
import models
import reading

from mnagt.errors import InputError
from mnagt.experiments.page import FONT, LIGHT, PICTURES, colour, dash, html_page, tile
from mnagt.experiments.svg import FAINT, INK, Curve, Markup, drawing, element, legend, standalone, text
from mnagt.files import read_json, write_text
from mnagt.version import __version__

RESULTS = Path(__file__).parents[1] / "results"
STYLE = """
.scroll { overflow-x: auto; } .scroll td, .scroll th { padding-right: 1.1rem; }
.notice { border-left: 4px solid var(--bad); padding: .1rem 0 .1rem 1rem; margin: 1.6rem 0; }
.notice p, .notice ul { margin: .3rem 0; } .notice ul { padding-left: 1.1rem; }
.missed { color: var(--bad); font-weight: 650; } .reached { color: var(--good); }
h3 { margin: 1.8rem 0 .5rem; } .pair { margin: 1rem 0; } .pair figure:only-child { max-width: 32rem; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .875rem; }
@media (max-width: 40rem) { figure { padding: .8rem .6rem; } .scroll td, .scroll th { padding-right: .7rem; } }
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows, and its lines: name, colour, dash."""

    name: str
    caption: str
    picture: Markup
    lines: tuple[tuple[str, str, str | None], ...] = ()


@dataclass(frozen=True)
class Target:
    """What a benchmark asks of a figure: at least ``bound``, or at most."""

    what: str
    value: float | None
    bound: float
    unit: str = "x"
    is_least: bool = True
    note: str = ""

    @property
    def is_reached(self) -> bool:
        return self.value is not None and (self.value >= self.bound if self.is_least else self.value <= self.bound)

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.is_least else '≤'}\N{NO-BREAK SPACE}{self.bound:g}{self.unit}"

    @property
    def measured(self) -> str:
        return "not measured" if self.value is None else f"{shown(self.value)}{self.unit}"


def shown(value: float | None) -> str:
    """Three digits or so."""
    if value is None:
        return "–"
    if value < 0.01:
        return f"{value:.1e}"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3}f}"


def over(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def times(above: float | None, below: float | None) -> str:
    return f"{shown(over(above, below))}x".replace("–x", "–")


# --- pictures ---

STEPS = [float(f"{factor}e{power}") for power in range(-9, 13) for factor in (1, 2, 5)]


@dataclass(frozen=True)
class LogAxis:
    """Takes values in [low, high] to places in [start, end]; equal factors lie equally far apart."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float) -> "LogAxis":
        """From round number to round number, with some room below the least of ``values``."""
        known = list(values) or [1.0]
        low = max(step for step in STEPS if step <= min(known) / 1.2)
        return cls(low, min(step for step in STEPS if step >= max(known)), start, end)

    def __call__(self, value: float) -> float:
        return self.start + math.log(value / self.low) / math.log(self.high / self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Powers of ten, or ones, twos and fives where these are few."""
        steps = [step for step in STEPS if self.low <= step <= self.high]
        powers = [step for step in steps if math.log10(step).is_integer()]
        return powers if len(powers) > 2 else steps


@dataclass(frozen=True)
class Bar:
    """A bar and the ``cells`` to its right; ``note`` in its place where there is no value; a ring at ``beside``."""

    name: str
    value: float | None
    cells: tuple[str, ...] = ()
    note: str = ""
    is_ours: bool = False
    is_hollow: bool = False
    beside: float | None = None


def bars(title: str, rows: Sequence[Bar], heads: Sequence[str], *, floor: float | None = None) -> Markup:
    """Bars on a log axis, one below the other, with columns of figures under ``heads``."""
    width, step, top = 400.0, 23, 24
    columns = zip(heads, *(row.cells for row in rows if row.cells), strict=True)
    wide = [max(map(len, words)) for words in columns]
    ends = [width - sum(7 * letters + 9 for letters in wide[i + 1 :]) for i in range(len(wide))]
    left, right = 12 + 8 * max(len(row.name) for row in rows), ends[0] - 7 * wide[0] - 14
    values = [value for row in rows for value in (row.value, row.beside, floor) if value]
    x, bottom = LogAxis.around(values, left, right), top + step * len(rows)
    axes = [text(end, 12, head, "end") for end, head in zip(ends, heads, strict=True)]
    for tick in x.ticks():
        axes.append(element("line", x1=x(tick), x2=x(tick), y1=top, y2=bottom, style=f"stroke:{FAINT}"))
        axes.append(text(x(tick), bottom + 16, _tick(tick)))
    parts = [element("g", *axes, class_="axes")]
    for i, row in enumerate(rows):
        y, ink = top + i * step, colour(0) if row.is_ours else "var(--soft)"
        parts.append(text(left - 8, y + 16, row.name, "end", style="font-weight:650" if row.is_ours else None))
        parts += [text(end, y + 16, word, "end") for end, word in zip(ends, row.cells, strict=False)]
        if not row.value:
            start = max(left, x(floor)) if floor else left
            parts.append(text(start + 6, y + 16, row.note, "start", style=f"fill:{ink};font-style:italic"))
            continue
        box = {"x": left, "y": y + 4, "width": x(row.value) - left, "height": step - 8, "rx": 2}
        style = f"fill:none;stroke:{ink}" if row.is_hollow else f"fill:{ink}"
        parts.append(element("rect", **box, style=style, stroke_dasharray="3 2" if row.is_hollow else None))
        if row.beside is not None:
            ring = {"style": f"stroke:{INK};fill:var(--card, #fff)", "stroke_width": 2}
            parts.append(element("circle", cx=x(row.beside), cy=y + step / 2, r=4.5, **ring))
    if floor is not None:
        line = {"x1": x(floor), "x2": x(floor), "y1": top - 6, "y2": bottom}
        parts += [element("line", **line, style=f"stroke:{INK}", stroke_width=2), text(x(floor), 12, "floor")]
    return drawing(title, (0, 0, width, bottom + 22), *parts)


def log_log(title: str, curves: Sequence[Curve], *, x_label: str, y_label: str) -> Markup:
    """Curves over their places, both axes logarithmic."""
    width, height = 400, 290
    places = sorted({place for curve in curves for place in curve.x})
    x = LogAxis(places[0], max(places[-1], 2 * places[0]), 50, width - 18)
    y = LogAxis.around((value for curve in curves for value in curve.middle), height - 44, 26)
    axes = [text(x.end, y.start + 36, x_label, "end"), text(2, 12, y_label, "start")]
    for tick in y.ticks():
        axes.append(element("line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), style=f"stroke:{FAINT}"))
        axes.append(text(x.start - 7, y(tick) + 4, _tick(tick), "end"))
    for place in places:
        axes.append(element("line", x1=x(place), x2=x(place), y1=y.start, y2=y.end, style=f"stroke:{FAINT}"))
        axes.append(text(x(place), y.start + 17, f"{place:,g}"))
    parts = [element("g", *axes, class_="axes")]
    for curve in curves:
        points = [(x(place), y(value)) for place, value in zip(curve.x, curve.middle, strict=True)]
        line = {"points": " ".join(f"{a:.1f},{b:.1f}" for a, b in points), "stroke_dasharray": curve.dash}
        parts.append(element("polyline", **line, style=f"stroke:{curve.colour};fill:none", stroke_width=2))
        for (a, b), place, value in zip(points, curve.x, curve.middle, strict=True):
            tip = element("title", f"{curve.name}, {place:,g} {x_label}: {shown(value)} {y_label}")
            parts.append(element("circle", tip, cx=a, cy=b, r=3, style=f"fill:{curve.colour}"))
    return drawing(title, (0, 0, width, height), *parts)


def _tick(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Markup:
    """A table whose first column names the rows."""
    names = element("tr", *(element("th", name, scope="col") for name in head))
    rows = []
    for name, *rest in lines:
        cells = [element("td", cell, class_="number") for cell in rest]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    return element("div", element("table", element("thead", names), element("tbody", *rows)), class_="scroll")


def note(words: str) -> Markup:
    return element("p", words, class_="note")


# --- attention on a GPU ---


def variants(row: Row) -> list[str]:
    """Those of a batch, with or without figures, in the order in which they ran."""
    return list(dict.fromkeys(key.split(",")[0] for key in row if key not in ("nodes", "largest", "floor, us")))


def reasons(row: Row) -> list[str]:
    """Why figures are missing or are not what they should be, each said once for the variants it holds for."""
    found: dict[str, list[str]] = {}
    for name in variants(row):
        if name in row:
            found.setdefault(row[name], []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in found.items()]


def is_eager(row: Row, name: str) -> bool:
    return f"{name}, us" in row and name in row


def gpu_attention(figures: Row) -> Iterator[Markup | Figure]:
    sweep = figures.get("sweep", {})
    for name, row in figures["attention"].items():
        yield from _gpu_batch(name, row, _replayed(name, figures))
    yield from _sweep(sweep)
    lines = [
        (
            batch,
            name,
            *(shown(row.get(key)) for key in (f"{name}, us", f"{name}, peak MiB", "floor, us")),
            times(row.get(f"{name}, us"), row["floor, us"]),
            times(row.get("padded, us"), row.get(f"{name}, us")),
            row.get(name, ""),
        )
        for batch, row in [*figures["attention"].items(), *sweep.items()]
        for name in variants(row)
    ]
    head = "batch", "variant", "µs", "peak MiB", "floor, µs", "over the floor", "padded over it", ""
    yield element("details", element("summary", "These figures as a table"), table(head, lines))


def _gpu_batch(name: str, row: Row, replayed: Row) -> Iterator[Markup | Figure]:
    case, names, stem = attention_gpu.CASES[name], variants(row), f"attention-gpu-{name.lower()}"
    what = f"{name}: {case.graphs:,} graphs, {row['nodes']:,} nodes, at most {row['largest']:,} in a graph"
    yield element("h3", f"{what}; {case.kernels} kernels of {case.heads} heads of {case.head_dim}")
    told, caption = reasons(row), f"{name}: time, forward and backward"
    if any(is_eager(row, each) for each in names):
        caption += "; dashed: eager"
        told.append("Timed eagerly, a variant waits for the CPU to launch its kernels, which a replay does not.")
    if replayed:
        us, padded = replayed["ours, us"], replayed.get("padded, us")
        words = f"ours {shown(us)} µs, {times(us, replayed['floor, us'])} the floor; padded {times(padded, us)} ours."
        told.append(f"Replayed, on {case.graphs} graphs of {name} drawn another way (in the sweep below): {words}")
    yield from map(note, told)
    time, memory = [], []
    for each in names:
        us, mib, short = row.get(f"{each}, us"), row.get(f"{each}, peak MiB"), row.get(each, "").split(":")[0]
        mark = {"note": short, "is_ours": each == "ours"}
        cells = shown(us), shown(over(us, row["floor, us"])), times(row.get("padded, us"), us)
        time.append(Bar(each, us, cells if us else (), is_hollow=is_eager(row, each), **mark))
        cells = shown(mib), shown(over(mib, row.get("padded, peak MiB")))
        memory.append(Bar(each, mib, cells if mib else (), **mark))
    heads = "µs", "floors", "padded/it"
    yield Figure(f"{stem}-time", caption, bars(caption, time, heads, floor=row["floor, us"]))
    caption = f"{name}: peak memory beside the inputs"
    yield Figure(f"{stem}-memory", caption, bars(caption, memory, ("MiB", "of padded")))


def _replayed(name: str, figures: Row) -> Row:
    """The sweep's batch of as many graphs, where ours was timed eagerly on the batch of that name only."""
    row = figures.get("sweep", {}).get(f"{attention_gpu.CASES[name].graphs} graphs of {name}", {})
    return row if is_eager(figures["attention"][name], "ours") and "ours, us" in row and "ours" not in row else {}


def _sweep(sweep: Mapping[str, Row]) -> Iterator[Markup | Figure]:
    """Cost against the size of graphs, and against their number."""
    kinds = {
        "nodes each": ("size", "nodes in each graph", f"Cost against size, about {attention_gpu.NODES:,} nodes in all"),
        "graphs of NCI1": ("number", "graphs", "Cost against the number of graphs of NCI1"),
    }
    found = {kind: {int(name.split()[0]): row for name, row in sweep.items() if name.endswith(kind)} for kind in kinds}
    found = {kind: rows for kind, rows in found.items() if rows}
    yield element("h3", "Cost against size and number of graphs")
    if not found:
        yield note("Not measured.")
        return
    case, told = attention_gpu.CASES["NCI1"], []
    for kind, rows in found.items():
        low, high = min(rows), max(rows)
        first, last = (times(rows[n].get("padded, us"), rows[n].get("ours, us")) for n in (low, high))
        told.append(f"With {low:,} {kinds[kind][1]} padded takes {first} ours, with {high:,} it takes {last}.")
    told.append(
        f"All have {case.kernels} kernels of {case.heads} heads of {case.head_dim}. The floor counts bytes; the "
        "arithmetic of attention grows with the size of graphs, and has no line here."
    )
    yield element("p", " ".join(told))
    yield from (
        note(f"{n} {kind}; {words}") for kind, rows in found.items() for n in rows for words in reasons(rows[n])
    )
    for kind, rows in found.items():
        stem, x_label, caption = kinds[kind]
        curves = []
        for i, name in enumerate(dict.fromkeys(name for row in rows.values() for name in variants(row))):
            points = {n: row[f"{name}, us"] for n, row in rows.items() if f"{name}, us" in row}
            curves.append(Curve(name, colour(i), [*points.values()], (), (), dash(i), [*points]))
        curves.append(Curve("floor", INK, [row["floor, us"] for row in rows.values()], (), (), "1 3", [*rows]))
        picture = log_log(caption, curves, x_label=x_label, y_label="µs")
        lines = tuple((curve.name, curve.colour, curve.dash) for curve in curves)
        yield Figure(f"attention-gpu-{stem}", caption, picture, lines)


def gpu_attention_targets(figures: Row) -> Iterator[Target]:
    for name, row in figures["attention"].items():
        bounds = {"ours over the floor": attention_gpu.CASES[name].floors, "padded over ours": attention_gpu.PADDED}
        got, instead = _over_floor_and_ours(row), _over_floor_and_ours(_replayed(name, figures))
        for (what, bound), value, other in zip(bounds.items(), got, instead, strict=True):
            told = row.get("ours", "").split(":")[0]
            told += f"; replayed, on other graphs of {name}, {shown(other)}x" if other else ""
            yield Target(f"{name}, {what}", value, bound, is_least=what.startswith("padded"), note=told)


def _over_floor_and_ours(row: Row) -> tuple[float | None, float | None]:
    ours = row.get("ours, us")
    return over(ours, row.get("floor, us")), over(row.get("padded, us"), ours)


# --- whole training steps ---


def steps(figures: Row, kind: str) -> Iterator[Markup | Figure]:
    ran = {name for found in figures["epochs"].values() for name in found["variants"]}
    if absent := [name for name in ("padded", *epoch.PEERS) if name not in ran]:
        yield note(f"Not run: {', '.join(absent)}.")
    apart = ", ".join(f"{shown(found['loss_apart'])} on {name}" for name, found in figures["epochs"].items())
    yield note(f"Losses of mnagt and padded get apart by {apart}, relative to them.")
    for name, found in figures["epochs"].items():
        rows, stem = found["variants"], f"step-{kind}-{name.lower()}"
        padded, time, memory = rows.get("padded", {}).get("MiB"), [], []
        for each, row in rows.items():
            mib, is_ours = row.get("MiB"), each in epoch.OURS[kind]
            time.append(Bar(each, row["ms"], (shown(row["ms"]), f"{shown(row['speed_up'])}x"), is_ours=is_ours))
            cells = shown(mib), shown(row.get("reserved MiB")), shown(over(mib, padded))
            memory.append(Bar(each, mib, cells, is_ours=is_ours))
        what = f"{name}, {found['steps']} batches of {found['batch_size']}"
        caption = f"{what}: a training step"
        yield Figure(f"{stem}-time", caption, bars(caption, time, ("ms", "it/mnagt")))
        if any(row.value for row in memory):
            caption = f"{what}: peak memory"
            yield Figure(f"{stem}-memory", caption, bars(caption, memory, ("MiB", "reserved", "of padded")))


def step_targets(figures: Row, kind: str) -> Iterator[Target]:
    for name, found in figures["epochs"].items():
        rows = found["variants"]
        for peer, bound in epoch.SPEED_UP[kind][name].items():
            yield Target(f"{name}, {peer} over ours", rows.get(peer, {}).get("speed_up"), bound)
        if kind == "cuda":
            share = over(*(rows.get(each, {}).get("MiB") for each in ("recomputed", "padded")))
            yield Target(f"{name}, memory of ours, recomputed, over padded", share, epoch.MEMORY, "", is_least=False)
        else:
            apart = found["loss_apart"]
            yield Target(f"{name}, loss from that of padded", apart, epoch.LOSS_APART, "", is_least=False)


# --- on a CPU ---


def cpu_attention(figures: Row) -> Iterator[Figure]:
    for name, row in figures["attention"].items():
        what = f"{name}, {attention.BATCH_SIZES[name]} graphs"
        ms, mib = ({each: row[f"{each}, {unit}"] for each in attention.VARIANTS} for unit in ("ms", "peak MiB"))
        time = [Bar(who, t, (shown(t), times(ms["padded"], t)), is_ours=who == "mnagt") for who, t in ms.items()]
        memory = [Bar(who, m, (shown(m), shown(m / mib["padded"])), is_ours=who == "mnagt") for who, m in mib.items()]
        caption = f"{what}: time, forward and backward"
        yield Figure(f"attention-cpu-{name.lower()}-time", caption, bars(caption, time, ("ms", "padded/it")))
        caption = f"{what}: peak memory"
        yield Figure(f"attention-cpu-{name.lower()}-memory", caption, bars(caption, memory, ("MiB", "of padded")))


def cpu_attention_targets(figures: Row) -> Iterator[Target]:
    for name, row in figures["attention"].items():
        yield Target(f"{name}, padded over ours", row["speed_up"], attention.SPEED_UP[name])
        yield Target(f"{name}, our memory over padded", row["memory ratio"], attention.MEMORY, "", is_least=False)


def every_model(figures: Row) -> Iterator[Markup | Figure]:
    rows, drawn = figures["models"], []
    if absent := [name for name in models.MODELS if name not in rows]:
        yield note(f"Not measured: {', '.join(absent)}.")
    yield note("Rings are PyTorch Geometric's own implementations, where it has one.")
    for name, row in sorted(rows.items(), key=lambda item: item[1]["ours, s"]):
        ours, peer = row["ours, s"], row.get("peer, s")
        cells = shown(ours), shown(peer) if peer else "", shown(row["peak, MiB"])
        drawn.append(Bar(name, ours, cells, is_ours=True, beside=peer))
    caption = f"An epoch of NCI1, batch {figures['batch_size']}"
    yield Figure("models-cpu", caption, bars(caption, drawn, ("s", "PyG, s", "peak MiB")))


def model_targets(figures: Row) -> Iterator[Target]:
    for name, row in figures["models"].items():
        if "peer, s" in row:
            yield Target(f"{name}, PyTorch Geometric over ours", row["peer, s"] / row["ours, s"], 1.0)


def batches(figures: Row) -> Iterator[Markup]:
    found = figures["batches"]
    keys = dict.fromkeys(key for of in found.values() for key in of if key.endswith(", ms"))
    lines = [(key.removesuffix(", ms"), *(shown(of.get(key)) for of in found.values())) for key in keys]
    for key, words in (("speed_up", "pyg over mnagt"), ("over lean", "pyg, lean, over mnagt")):
        lines.append((words, *(f"{shown(of[key])}x" for of in found.values())))
    yield table(("ms a batch", *(f"{name}, {batching.BATCH_SIZES[name]} graphs" for name in found)), lines)


def batching_targets(figures: Row) -> Iterator[Target]:
    for name, row in figures["batches"].items():
        yield Target(f"{name}, pyg over mnagt", row["speed_up"], batching.SPEED_UP)


def readers(figures: Row) -> Iterator[Markup]:
    lines = [
        (name, shown(row["seconds"]), f"{shown(row['speed_up'])}x", shown(row["peak_gib"]), f"{row['edges']:,}")
        for name, row in figures["readers"].items()
    ]
    yield table((figures["data"], "s", "pyg over it", "peak GiB", "edges"), lines)


def import_times(figures: Row) -> Iterator[Markup]:
    of_torch = figures["over_torch"]
    lines = [(name, shown(s), shown(of_torch[name])) for name, s in figures["cpu_seconds"].items()]
    yield table(("", "CPU s", "over torch"), lines)


def import_targets(figures: Row) -> Iterator[Target]:
    for name in ("import mnagt", "from mnagt import train"):
        value = figures["over_torch"][name]
        yield Target(f"{name}, over import torch", value, imports.OVER_TORCH, is_least=False)
    yield Target("mnagt --help", figures["cpu_seconds"]["mnagt --help"], imports.HELP_SECONDS, " s", is_least=False)


# --- the page ---


def no_targets(figures: Row) -> Iterator[Target]:
    yield from ()


@dataclass(frozen=True)
class Part:
    """A section of the page: the file it is read from, the script that wrote it, what to show and what was asked."""

    title: str
    file: str
    script: ModuleType
    show: Callable[[Row], Iterator[Markup | Figure]]
    targets: Callable[[Row], Iterator[Target]] = no_targets


def _steps(kind: str) -> tuple[Any, Any]:
    return partial(steps, kind=kind), partial(step_targets, kind=kind)


PARTS = [
    Part("Attention on a GPU", "attention-gpu.json", attention_gpu, gpu_attention, gpu_attention_targets),
    Part("Training steps on a GPU", "epoch-gpu.json", epoch, *_steps("cuda")),
    Part("Attention on a CPU", "attention-cpu.json", attention, cpu_attention, cpu_attention_targets),
    Part("Training steps on a CPU", "epoch-cpu.json", epoch, *_steps("cpu")),
    Part("An epoch of every model", "models-cpu.json", models, every_model, model_targets),
    Part("Making batches", "batching-cpu.json", batching, batches, batching_targets),
    Part("Reading files", "reading-cpu.json", reading, readers),
    Part("Importing", "imports-cpu.json", imports, import_times, import_targets),
]


def write_page(folder: Path) -> Path:
    """The page and its pictures, from the figures in ``folder``."""
    found = {part.file: read_json(folder / part.file) for part in PARTS if (folder / part.file).exists()}
    if not found:
        raise InputError(f"{folder}: none of the benchmarks' files is there; `make benchmarks` writes them")
    sections, style = [_headline(found)], f"svg {{ font: 12.5px {FONT}; }} {PICTURES}"
    for part in (part for part in PARTS if part.file in found):
        figures = found[part.file]
        body = list(part.show(figures))
        for each in body:
            if isinstance(each, Figure):
                drawn = standalone(each.picture, each.caption, each.lines, LIGHT, style)
                write_text(folder / "benchmarks" / f"{each.name}.svg", drawn)
        sections.append(_section(part, figures, body, _dated(folder / part.file, figures)))
    page = folder / "benchmarks.html"
    write_text(page, html_page("mnagt: benchmarks", sections, ("benchmarks/page.py", f"mnagt {__version__}"), STYLE))
    return page


def _headline(found: Mapping[str, Row]) -> Markup:
    targets = [(part, target) for part in PARTS if part.file in found for target in part.targets(found[part.file])]
    missed = [(part, target) for part, target in targets if not target.is_reached]
    tiles = [tile("targets reached", str(len(targets) - len(missed)), f" of {len(targets)}", is_first=True)]
    for kind in ("GPU", "CPU"):
        epochs = found.get(f"epoch-{kind.lower()}.json", {}).get("epochs", {})
        faster = [shown(of["variants"].get("padded", {}).get("speed_up")) for of in epochs.values()]
        if faster:
            tiles.append(tile(f"padded over ours, steps on {' / '.join(epochs)}, {kind}", " / ".join(faster), " x"))
    words = "Ours beside what others do, each comparison in one run. Every figure is read from a file that a "
    words += "script in benchmarks/ wrote, and the targets are the scripts' own. All axes are logarithmic."
    told = []
    if missed:
        lines = [f"{part.title}: {t.what} {t.measured}, wanted {t.wanted}{_aside(t.note)}" for part, t in missed]
        told += [element("p", "Missed:"), element("ul", *(element("li", line) for line in lines))]
    if absent := [part.file for part in PARTS if part.file not in found]:
        told.append(element("p", f"Not there, and left out: {', '.join(absent)}."))
    return element(
        "header",
        element("h1", "Benchmarks"),
        element("p", words, class_="lead"),
        element("div", *tiles, class_="tiles"),
        element("div", *told, class_="notice", role="note") if told else "",
    )


def _section(part: Part, figures: Row, body: Iterable[Markup | Figure], dated: str) -> Markup:
    script = f"benchmarks/{Path(str(part.script.__file__)).name}"
    return element(
        "section",
        element("h2", part.title),
        _targets([*part.targets(figures)]),
        *_paired(body),
        element("details", element("summary", f"How it was measured: {script}"), *_paragraphs(part.script.__doc__)),
        note(f"{part.file}, {dated}: {_machine(figures)}."),
    )


def _paired(body: Iterable[Markup | Figure]) -> Iterator[Markup]:
    """Figures that follow each other stand side by side."""
    waiting: list[Markup] = []
    for each in [*body, Markup("")]:
        if isinstance(each, Figure):
            keys = legend(((name, ink) for name, ink, _ in each.lines), [line for *_, line in each.lines])
            parts = element("figcaption", each.caption), each.picture, keys if each.lines else ""
            waiting.append(element("figure", *parts))
            continue
        if waiting:
            yield element("div", *waiting, class_="pair")
        waiting = []
        yield each


def _targets(targets: Sequence[Target]) -> Markup:
    if not targets:
        return note("No targets were set.")
    lines = []
    for target in targets:
        word = "reached" if target.is_reached else "missed"
        what = target.what + _aside(target.note.split(";")[0])
        lines.append((what, target.wanted, target.measured, element("span", word, class_=word)))
    return table(("target", "wanted", "measured", ""), lines)


def _aside(words: str) -> str:
    return f" ({words})" if words else ""


def _paragraphs(words: str | None) -> Iterator[Markup]:
    """A docstring as paragraphs, its literals as code."""
    for paragraph in (words or "").strip().split("\n\n"):
        pieces = re.split(r"``(.+?)``", paragraph)
        yield element("p", *(element("code", each) if i % 2 else each for i, each in enumerate(pieces)), class_="note")


def _machine(figures: Row) -> str:
    """Where figures come from, in words."""
    machine = figures["machine"]
    parts = [figures[key] for key in ("gpu", "device", "attention") if isinstance(figures.get(key), str)]
    parts += [f"{figures['bytes_per_second'] / 1e12:.2f} TB/s"] if "bytes_per_second" in figures else []
    parts.append(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}")
    versions = ("python", "torch", "torch_geometric", "numpy", "mnagt")
    parts.append(", ".join(f"{name} {machine[name]}" for name in versions))
    settings = ("dtype", "precision", "threads", "batches", "rounds", "workers", "seed")
    given = [f"{name} {figures[name]}" for name in settings if isinstance(figures.get(name), str | int)]
    return "; ".join([*parts, ", ".join(given)] if given else parts)


def _dated(path: Path, figures: Row) -> str:
    """When the figures were taken; where they do not say it, when the file was committed or else written."""
    if "date" in figures:
        return f"measured {figures['date'][:10]}"
    if not _git(path, "status", "--porcelain") and (day := _git(path, "log", "-1", "--format=%cs")):
        return f"committed {day}"
    return f"written {date.fromtimestamp(path.stat().st_mtime)}"


def _git(path: Path, *words: str) -> str:
    """What git says about a file; nothing where there is no git."""
    try:
        asked = subprocess.run(["git", *words, "--", path.name], cwd=path.parent, capture_output=True, text=True)
    except OSError:
        return ""
    return asked.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to read from and write into [results]")
    try:
        print(write_page(parser.parse_args().results))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
