"""The sections of the page of benchmarks: what each shows of its figures, and the targets that it sets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import attention
import attention_gpu
import batching
import conv
import conv_accuracy
import epoch
import imports
import models
import reading
from markupsafe import Markup

from mnagt.reports.charts import Bar, Series, bar_chart, line_chart
from mnagt.reports.page import html
from mnagt.reports.picture import Picture
from mnagt.reports.theme import INK, SOFT, LineStyle, series_style

Record = Mapping[str, Any]  # what a benchmark measured, as its JSON file holds it


class NamedPicture(NamedTuple):
    """A picture and the name of its file."""

    name: str
    picture: Picture


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
        return "not measured" if self.value is None else f"{format_figure(self.value)}{self.unit}"


def format_figure(value: float | None) -> str:
    """Three digits or so."""
    if value is None or value < 0.01:
        return "–" if value is None else f"{value:.1e}"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3}f}"


def ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def format_ratio(above: float | None, below: float | None) -> str:
    return f"{format_figure(ratio(above, below))}x".replace("–x", "–")


def note(text: str) -> Markup:
    return html.paragraph(text, "note")


def make_bar(name: str, value: float | None, cells: tuple[str, ...], *, is_ours: bool = False, **more: Any) -> Bar:
    """A bar in the colour of ours or of the others; without a value, its note in place of the cells."""
    colour = series_style(0).colour if is_ours else SOFT
    return Bar(name, value or None, cells if value else (), colour, is_ours=is_ours, **more)


# --- attention on a GPU ---


def variants(row: Record) -> list[str]:
    """Those of a batch, with or without figures, in the order in which they ran."""
    return list(dict.fromkeys(key.split(",")[0] for key in row if key not in ("nodes", "largest", "floor, us")))


def reasons(row: Record) -> list[str]:
    """Why figures are missing or are not what they should be, each said once for the variants it holds for."""
    found: dict[str, list[str]] = {}
    for name in variants(row):
        if name in row:
            found.setdefault(row[name], []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in found.items()]


def is_eager(row: Record, name: str) -> bool:
    return f"{name}, us" in row and name in row


def gpu_attention(figures: Record) -> Iterator[Markup | NamedPicture]:
    sweep = figures.get("sweep", {})
    for name, row in figures["attention"].items():
        yield from _gpu_batch(name, row, _find_replay(name, figures))
    yield from _sweep(sweep)
    lines = [
        (
            batch,
            name,
            *(format_figure(row.get(key)) for key in (f"{name}, us", f"{name}, peak MiB", "floor, us")),
            format_ratio(row.get(f"{name}, us"), row["floor, us"]),
            format_ratio(row.get("padded, us"), row.get(f"{name}, us")),
            row.get(name, ""),
        )
        for batch, row in [*figures["attention"].items(), *sweep.items()]
        for name in variants(row)
    ]
    head = "batch", "variant", "µs", "peak MiB", "floor, µs", "over the floor", "padded over it", ""
    yield html.details("These figures as a table", [html.table(head, lines)])


def _gpu_batch(name: str, row: Record, replayed: Record) -> Iterator[Markup | NamedPicture]:
    case, names, stem = attention_gpu.CASES[name], variants(row), f"attention-gpu-{name.lower()}"
    what = f"{name}: {case.graphs:,} graphs, {row['nodes']:,} nodes, at most {row['largest']:,} in a graph"
    yield html.heading(f"{what}; {case.kernels} kernels of {case.heads} heads of {case.head_dim}")
    notes, caption = reasons(row), f"{name}: time, forward and backward"
    if any(is_eager(row, each) for each in names):
        caption += "; dashed: eager"
        notes.append("Timed eagerly, a variant waits for the CPU to launch its kernels, which a replay does not.")
    if replayed:
        us, padded = replayed["ours, us"], replayed.get("padded, us")
        words = f"ours {format_figure(us)} µs, {format_ratio(us, replayed['floor, us'])} the floor; "
        words += f"padded {format_ratio(padded, us)} ours."
        notes.append(f"Replayed, on {case.graphs} graphs of {name} drawn another way (in the sweep below): {words}")
    yield from map(note, notes)
    time, memory = [], []
    for each in names:
        us, mib, short = row.get(f"{each}, us"), row.get(f"{each}, peak MiB"), row.get(each, "").split(":")[0]
        mark = {"note": short, "is_ours": each == "ours"}
        cells = format_figure(us), format_figure(ratio(us, row["floor, us"])), format_ratio(row.get("padded, us"), us)
        time.append(make_bar(each, us, cells, is_hollow=is_eager(row, each), **mark))
        cells = format_figure(mib), format_figure(ratio(mib, row.get("padded, peak MiB")))
        memory.append(make_bar(each, mib, cells, **mark))
    heads = "µs", "floors", "padded/it"
    yield NamedPicture(f"{stem}-time", bar_chart(caption, time, columns=heads, is_log=True, floor=row["floor, us"]))
    caption = f"{name}: peak memory beside the inputs"
    yield NamedPicture(f"{stem}-memory", bar_chart(caption, memory, columns=("MiB", "of padded"), is_log=True))


def _find_replay(name: str, figures: Record) -> Record:
    """The sweep's batch of as many graphs, where ours was timed eagerly on the batch of that name only."""
    row = figures.get("sweep", {}).get(f"{attention_gpu.CASES[name].graphs} graphs of {name}", {})
    return row if is_eager(figures["attention"][name], "ours") and "ours, us" in row and "ours" not in row else {}


def _sweep(sweep: Mapping[str, Record]) -> Iterator[Markup | NamedPicture]:
    """Cost against the size of graphs, and against their number."""
    kinds = {
        "nodes each": ("size", "nodes in each graph", f"Cost against size, about {attention_gpu.NODES:,} nodes in all"),
        "graphs of NCI1": ("number", "graphs", "Cost against the number of graphs of NCI1"),
    }
    found = {kind: {int(name.split()[0]): row for name, row in sweep.items() if name.endswith(kind)} for kind in kinds}
    found = {kind: rows for kind, rows in found.items() if rows}
    yield html.heading("Cost against size and number of graphs")
    if not found:
        yield note("Not measured.")
        return
    case, sentences = attention_gpu.CASES["NCI1"], []
    for kind, rows in found.items():
        low, high = min(rows), max(rows)
        first, last = (format_ratio(rows[n].get("padded, us"), rows[n].get("ours, us")) for n in (low, high))
        sentences.append(f"With {low:,} {kinds[kind][1]} padded takes {first} ours, with {high:,} it takes {last}.")
    sentences.append(
        f"All have {case.kernels} kernels of {case.heads} heads of {case.head_dim}. The floor counts bytes; the "
        "arithmetic of attention grows with the size of graphs, and has no line here."
    )
    yield html.paragraph(" ".join(sentences))
    yield from (
        note(f"{n} {kind}; {words}") for kind, rows in found.items() for n in rows for words in reasons(rows[n])
    )
    for kind, rows in found.items():
        stem, x_label, caption = kinds[kind]
        series = []
        for i, name in enumerate(dict.fromkeys(name for row in rows.values() for name in variants(row))):
            points = {n: row[f"{name}, us"] for n, row in rows.items() if f"{name}, us" in row}
            series.append(Series(name, series_style(i), [*points], [*points.values()]))
        floors = [row["floor, us"] for row in rows.values()]
        series.append(Series("floor", LineStyle(INK, (1, 3)), [*rows], floors))
        picture = line_chart(caption, series, x_label=x_label, y_label="µs", x_ticks=sorted(rows), is_log=True)
        yield NamedPicture(f"attention-gpu-{stem}", picture)


def gpu_attention_targets(figures: Record) -> Iterator[Target]:
    for name, row in figures["attention"].items():
        bounds = {"ours over the floor": attention_gpu.CASES[name].floors, "padded over ours": attention_gpu.PADDED}
        got, instead = _over_floor_and_ours(row), _over_floor_and_ours(_find_replay(name, figures))
        for (what, bound), value, other in zip(bounds.items(), got, instead, strict=True):
            reason = row.get("ours", "").split(":")[0]
            reason += f"; replayed, on other graphs of {name}, {format_figure(other)}x" if other else ""
            yield Target(f"{name}, {what}", value, bound, is_least=what.startswith("padded"), note=reason)


def _over_floor_and_ours(row: Record) -> tuple[float | None, float | None]:
    ours = row.get("ours, us")
    return ratio(ours, row.get("floor, us")), ratio(row.get("padded, us"), ours)


# --- whole training steps ---


def steps(figures: Record, kind: str) -> Iterator[Markup | NamedPicture]:
    ran = {name for found in figures["epochs"].values() for name in found["variants"]}
    if absent := [name for name in ("padded", *epoch.PEERS) if name not in ran]:
        yield note(f"Not run: {', '.join(absent)}.")
    apart = ", ".join(f"{format_figure(found['loss_apart'])} on {name}" for name, found in figures["epochs"].items())
    yield note(f"Losses of mnagt and padded get apart by {apart}, relative to them.")
    for name, found in figures["epochs"].items():
        rows, stem = found["variants"], f"step-{kind}-{name.lower()}"
        padded, time, memory = rows.get("padded", {}).get("MiB"), [], []
        for each, row in rows.items():
            mib, is_ours = row.get("MiB"), each in epoch.OURS[kind]
            time.append(
                make_bar(
                    each, row["ms"], (format_figure(row["ms"]), f"{format_figure(row['speed_up'])}x"), is_ours=is_ours
                )
            )
            cells = format_figure(mib), format_figure(row.get("reserved MiB")), format_figure(ratio(mib, padded))
            memory.append(make_bar(each, mib, cells, is_ours=is_ours))
        what = f"{name}, {found['steps']} batches of {found['batch_size']}"
        caption = f"{what}: a training step"
        yield NamedPicture(f"{stem}-time", bar_chart(caption, time, columns=("ms", "it/mnagt"), is_log=True))
        if any(row.value for row in memory):
            caption = f"{what}: peak memory"
            yield NamedPicture(
                f"{stem}-memory", bar_chart(caption, memory, columns=("MiB", "reserved", "of padded"), is_log=True)
            )


def step_targets(figures: Record, kind: str) -> Iterator[Target]:
    for name, found in figures["epochs"].items():
        rows = found["variants"]
        for peer, bound in epoch.SPEED_UP[kind][name].items():
            yield Target(f"{name}, {peer} over ours", rows.get(peer, {}).get("speed_up"), bound)
        if kind == "cuda":
            share = ratio(*(rows.get(each, {}).get("MiB") for each in ("recomputed", "padded")))
            yield Target(f"{name}, memory of ours, recomputed, over padded", share, epoch.MEMORY, "", is_least=False)
        else:
            apart = found["loss_apart"]
            yield Target(f"{name}, loss from that of padded", apart, epoch.LOSS_APART, "", is_least=False)


# --- on a CPU ---


def cpu_attention(figures: Record) -> Iterator[NamedPicture]:
    for name, row in figures["attention"].items():
        what = f"{name}, {attention.BATCH_SIZES[name]} graphs"
        ms, mib = ({each: row[f"{each}, {unit}"] for each in attention.VARIANTS} for unit in ("ms", "peak MiB"))
        time = [
            make_bar(who, t, (format_figure(t), format_ratio(ms["padded"], t)), is_ours=who == "mnagt")
            for who, t in ms.items()
        ]
        memory = [
            make_bar(who, m, (format_figure(m), format_figure(m / mib["padded"])), is_ours=who == "mnagt")
            for who, m in mib.items()
        ]
        caption = f"{what}: time, forward and backward"
        yield NamedPicture(
            f"attention-cpu-{name.lower()}-time", bar_chart(caption, time, columns=("ms", "padded/it"), is_log=True)
        )
        caption = f"{what}: peak memory"
        yield NamedPicture(
            f"attention-cpu-{name.lower()}-memory",
            bar_chart(caption, memory, columns=("MiB", "of padded"), is_log=True),
        )


def cpu_attention_targets(figures: Record) -> Iterator[Target]:
    for name, row in figures["attention"].items():
        yield Target(f"{name}, padded over ours", row["speed_up"], attention.SPEED_UP[name])
        yield Target(f"{name}, our memory over padded", row["memory ratio"], attention.MEMORY, "", is_least=False)


def every_model(figures: Record) -> Iterator[Markup | NamedPicture]:
    rows, drawn = figures["models"], []
    if absent := [name for name, entry in models.MODELS.items() if name not in rows and not entry.is_fitted_by_sklearn]:
        yield note(f"Not measured: {', '.join(absent)}.")
    yield note("Rings are PyTorch Geometric's own implementations, where it has one.")
    for name, row in sorted(rows.items(), key=lambda item: item[1]["ours, s"]):
        ours, peer = row["ours, s"], row.get("peer, s")
        cells = format_figure(ours), format_figure(peer) if peer else "", format_figure(row["peak, MiB"])
        drawn.append(make_bar(name, ours, cells, is_ours=True, ring=peer))
    caption = f"An epoch of NCI1, batch {figures['batch_size']}"
    yield NamedPicture("models-cpu", bar_chart(caption, drawn, columns=("s", "PyG, s", "peak MiB"), is_log=True))


def model_targets(figures: Record) -> Iterator[Target]:
    for name, row in figures["models"].items():
        if "peer, s" in row:
            yield Target(f"{name}, PyTorch Geometric over ours", row["peer, s"] / row["ours, s"], 1.0)


def layers(figures: Record) -> Iterator[Markup]:
    for size, rows in figures["steps"].items():
        keys = ("ms", "peak MiB", "speed_up")
        lines = [(name, *(format_figure(row[key]) for key in keys)) for name, row in rows.items()]
        head = f"{figures['layers']} layers, width {figures['channels']}, batch {size}"
        yield html.table((head, "ms a step", "peak MiB", "gps over it, times"), lines)


def layer_accuracy(figures: Record) -> Iterator[Markup]:
    lines = [(name, *map(format_figure, seeds)) for name, seeds in figures["accuracy"].items()]
    head = f"validation accuracy; difference {format_figure(figures['difference'])}"
    yield html.table((head, *map("seed {}".format, range(figures["seeds"]))), lines)


def layer_targets(figures: Record) -> Iterator[Target]:
    for size, bound in conv.SPEED_UP["cpu"].items():
        yield Target(f"batch {size}, gps over ours", figures["steps"][str(size)]["mnagt"]["speed_up"], bound)


def batches(figures: Record) -> Iterator[Markup]:
    found = figures["batches"]
    keys = dict.fromkeys(key for of in found.values() for key in of if key.endswith(", ms"))
    lines = [(key.removesuffix(", ms"), *(format_figure(of.get(key)) for of in found.values())) for key in keys]
    for key, words in (("speed_up", "pyg over mnagt"), ("over lean", "pyg, lean, over mnagt")):
        lines.append((words, *(f"{format_figure(of[key])}x" for of in found.values())))
    yield html.table(("ms a batch", *(f"{name}, {batching.BATCH_SIZES[name]} graphs" for name in found)), lines)


def batching_targets(figures: Record) -> Iterator[Target]:
    for name, row in figures["batches"].items():
        yield Target(f"{name}, pyg over mnagt", row["speed_up"], batching.SPEED_UP)


def readers(figures: Record) -> Iterator[Markup]:
    lines = [
        (
            name,
            format_figure(row["seconds"]),
            f"{format_figure(row['speed_up'])}x",
            format_figure(row["peak_gib"]),
            f"{row['edges']:,}",
        )
        for name, row in figures["readers"].items()
    ]
    yield html.table((figures["data"], "s", "pyg over it", "peak GiB", "edges"), lines)


def import_times(figures: Record) -> Iterator[Markup]:
    of_torch = figures["over_torch"]
    lines = [(name, format_figure(s), format_figure(of_torch[name])) for name, s in figures["cpu_seconds"].items()]
    yield html.table(("", "CPU s", "over torch"), lines)


def import_targets(figures: Record) -> Iterator[Target]:
    for name in ("import mnagt", "from mnagt import train"):
        value = figures["over_torch"][name]
        yield Target(f"{name}, over import torch", value, imports.OVER_TORCH, is_least=False)
    for name, limit in ((imports.SLOWEST_HELP, imports.HELP_SECONDS), (imports.PREDICT, imports.PREDICT_SECONDS)):
        yield Target(name, figures["cpu_seconds"][name], limit, " s", is_least=False)


# --- all sections ---


def no_targets(figures: Record) -> Iterator[Target]:
    yield from ()


@dataclass(frozen=True)
class Part:
    """A section of the page: the file it is read from, the script that wrote it, what to show and what was asked."""

    title: str
    file: str
    script: ModuleType
    show: Callable[[Record], Iterator[Markup | NamedPicture]]
    targets: Callable[[Record], Iterator[Target]] = no_targets


def _steps(kind: str) -> tuple[Any, Any]:
    return partial(steps, kind=kind), partial(step_targets, kind=kind)


PARTS = [
    Part("Attention on a GPU", "attention-gpu.json", attention_gpu, gpu_attention, gpu_attention_targets),
    Part("Training steps on a GPU", "epoch-gpu.json", epoch, *_steps("cuda")),
    Part("Attention on a CPU", "attention-cpu.json", attention, cpu_attention, cpu_attention_targets),
    Part("Training steps on a CPU", "epoch-cpu.json", epoch, *_steps("cpu")),
    Part("An epoch of every model", "models-cpu.json", models, every_model, model_targets),
    Part("Layers beside GPSConv", "conv-cpu.json", conv, layers, layer_targets),
    Part("What they learn", "conv-accuracy-cpu.json", conv_accuracy, layer_accuracy),
    Part("Making batches", "batching-cpu.json", batching, batches, batching_targets),
    Part("Reading files", "reading-cpu.json", reading, readers),
    Part("Importing", "imports-cpu.json", imports, import_times, import_targets),
]
