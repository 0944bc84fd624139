"""What an experiment found, as files: one HTML page that needs nothing from outside, a Markdown table, and figures."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mnagt.experiments import paper
from mnagt.experiments.page import FONT, LIGHT, PICTURES, colour, dash, html_page, tile
from mnagt.experiments.reproduce import PROTOCOLS, Cell, Findings, brings_split
from mnagt.experiments.reproduce_tables import OURS
from mnagt.experiments.reproduce_words import (
    by_model,
    columns,
    entry,
    figure,
    markdown,
    mean_of,
    notices,
    ours,
    paired,
    printed,
    protocol,
    short,
    table,
    verdict,
)
from mnagt.experiments.statistics import Paired
from mnagt.experiments.svg import Bar, Curve, Markup, element, gain_bars, interval, legend, line_chart, standalone
from mnagt.files import write_text, written_atomically
from mnagt.training.progress import clock
from mnagt.version import __version__

STYLE = """
.scroll { overflow-x: auto; } .scroll td, .scroll th { padding-right: 1.1rem; }
.pair figure:only-child { max-width: 32rem; }
.notice { border-left: 4px solid var(--bad); padding: .1rem 0 .1rem 1rem; margin: 1.4rem 0; }
.notice p { margin: .3rem 0; overflow-wrap: anywhere; }
td.best { font-weight: 650; } .facts th { white-space: nowrap; } .facts td { overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows, and its lines: name, colour, dash."""

    name: str
    caption: str
    picture: Markup
    lines: tuple[tuple[str, str, str | None], ...] = ()


def write_report(out: Path, findings: Findings) -> None:
    """Write page, table and figures into ``out``. PNG needs resvg (``pip install 'mnagt[figures]'``)."""
    for dataset in findings.datasets:
        for each in figures(findings, dataset):
            path = out / "figures" / f"{each.name}.svg"
            style = f"svg {{ font: 12.5px {FONT}; }} {PICTURES}"
            drawn = standalone(each.picture, each.caption, each.lines, LIGHT, style)
            write_text(path, drawn)
            _rasterise(drawn, path.with_suffix(".png"))
    write_text(out / f"{findings.name}.md", markdown(findings))
    write_text(out / "report.html", page(findings))


def _rasterise(drawn: str, path: Path) -> None:
    try:
        import resvg_py
    except ImportError:
        return
    with written_atomically(path) as scratch:
        scratch.write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=drawn, zoom=2, font_family="DejaVu Sans")))


# --- figures ---


def figures(findings: Findings, dataset: str) -> list[Figure]:
    """The pictures of a data set, as far as there is something to draw."""
    stem, models = short(dataset).lower(), by_model(findings, dataset)
    match findings.experiment.kind:
        case "sensitivity" if models:
            return [_sensitivity(findings, dataset, f"{stem}-{findings.name}")]
        case "ablation":
            bars = [_gains(findings, dataset, model, f"{stem}-{findings.name}-{model}") for model in models]
            return [*(each for each in bars if each.picture), *_learning(dataset, models.get(OURS, []), stem)]
        case "scores":
            return _learning(dataset, _followed(findings, dataset), stem)
    return []


def _followed(findings: Findings, dataset: str) -> list[Cell]:
    """The four whose learning is drawn: ours, the paper's, and the best two others."""
    cells = [cell for cell in findings.on(dataset) if cell.summary]
    cells.sort(key=lambda cell: (cell.row.model != OURS, cell.row.model != "mnagt-paper", -mean_of(cell)))
    return cells[:4]


def _learning(dataset: str, cells: Sequence[Cell], stem: str) -> list[Figure]:
    """Loss and validation score by epoch, of the trials whose curves are on record."""
    if not cells:
        return []
    metric = cells[0].metric
    wanted = {
        "loss": ("training loss", "", 1.0),
        f"valid_{metric}": (f"validation {metric}", _sign(cells), cells[0].unit),
    }
    drawn = []
    for key, (words, y_label, unit) in wanted.items():
        curves = []
        for i, cell in enumerate(cells):
            if runs := [record["curves"] for record in cell.known.values() if "curves" in record]:
                values = [[unit * value for value in epoch] for epoch in zip(*(run[key] for run in runs), strict=True)]
                curves.append(_band(cell.row.name, i, runs[0]["epoch"], values))
        if curves:
            drawn.append(_chart(f"{stem}-{key}", f"{short(dataset)}: {words}", curves, "epoch", y_label))
    return drawn


def _sensitivity(findings: Findings, dataset: str, name: str) -> Figure:
    curves = []
    for i, (model, cells) in enumerate(by_model(findings, dataset).items()):
        places = [cell.row.at for cell in cells if isinstance(cell.row.at, int)]
        curves.append(_band(model, i, places, [list(cell.tests.values()) for cell in cells]))
    ticks = sorted({row.at for row in findings.rows if isinstance(row.at, int)})
    cells = [cell for cell in findings.on(dataset) if cell.known]
    caption = f"{short(dataset)}: test {cells[0].metric}"
    return _chart(name, caption, curves, findings.experiment.axis, _sign(cells), ticks)


def _band(name: str, number: int, places: Sequence[float], values: Sequence[Sequence[float]]) -> Curve:
    """A mean with one deviation to either side."""
    middle = [mean(each) for each in values]
    spread = [stdev(each) if len(each) > 1 else 0.0 for each in values]
    low, high = ([m + side * s for m, s in zip(middle, spread, strict=True)] for side in (-1, 1))
    return Curve(name, colour(number), middle, low, high, dash(number), places)


def _chart(
    name: str, caption: str, curves: Sequence[Curve], x: str, y: str, ticks: Sequence[float] | None = None
) -> Figure:
    picture = line_chart(caption, curves, x_label=x, y_label=y, ticks=ticks)
    return Figure(name, caption, picture, tuple((curve.name, curve.colour, curve.dash) for curve in curves))


def _gains(findings: Findings, dataset: str, model: str, name: str) -> Figure:
    caption, bars = f"{short(dataset)}: {model} with another mixer, less {model} with the adaptive one", []
    for row, (pair, _) in paired(findings, dataset).items():
        cell = findings.cell(row, dataset)
        if cell is not None and cell.row.model == model:
            other = findings.cell(cell.row.against, dataset)
            found, best = cell.row.test.get(dataset), other.row.test.get(dataset) if other else None
            ring = found.mean - best.mean if found and best else None
            error = 0.0 if math.isnan(pair.error) else pair.error
            bars.append(Bar(str(cell.row.at), colour(0 if model == OURS else 1), pair.mean, error, ring))
    return Figure(name, caption, gain_bars(caption, bars, x_label="points") if bars else Markup(""))


def _sign(cells: Iterable[Cell]) -> str:
    return "%" if any(cell.unit == 100 for cell in cells) else ""


# --- the page ---


def page(findings: Findings) -> str:
    sections = [_headline(findings)]
    if findings.experiment.kind == "parameters":
        sections.append(element("section", _table(*table(findings))))
    else:
        sections += [_dataset(findings, dataset) for dataset in findings.datasets]
        sections += [_elsewhere(findings)] if findings.elsewhere else []
        records = [record for cell in findings.cells for record in cell.known.values()]
        sections += [_cost(findings, records), _provenance(findings, records)] if records else []
    facts = f"mnagt reproduce {findings.name}", f"mnagt {__version__}", "the paper is Li, Chen, He, 2022"
    return html_page(f"{findings.experiment.title}, ours and the paper's", sections, facts, STYLE)


def _headline(findings: Findings) -> Markup:
    parts = [element("h1", findings.experiment.title), element("p", findings.experiment.about, class_="lead")]
    if told := notices(findings):
        parts.append(element("div", *(element("p", words) for words in told), class_="notice", role="note"))
    tiles = [_tile(cell) for cell in findings.cells if cell.row.name == OURS and cell.summary]
    if tiles:
        parts.append(element("div", *tiles, class_="tiles"))
    if findings.experiment.kind != "parameters":
        parts.append(element("p", protocol(findings), class_="note"))
    return element("header", *parts)


def _tile(cell: Cell) -> Markup:
    number, _, rest = ours(cell).partition(" ")
    claim = {**paper.TABLE1["MNA-GT"], **{name: test for name, (_, test) in paper.TABLE2["MNA-GT"].items()}}
    beside = (
        f"; the paper’s MNA-GT {figure(claim[cell.dataset].mean, None, cell.unit)}" if cell.dataset in claim else ""
    )
    return tile(f"{OURS} on {short(cell.dataset)}{beside}", number, f" {rest} {_sign([cell])}")


def _dataset(findings: Findings, dataset: str) -> Markup:
    drawn = [
        element(
            "figure",
            element("figcaption", each.caption),
            each.picture,
            legend(((name, c) for name, c, _ in each.lines), [d for *_, d in each.lines]) if each.lines else "",
        )
        for each in figures(findings, dataset)
    ]
    notes = []
    if by_model(findings, dataset):
        notes.append("Dots are our means with one deviation to either side, rings the paper’s; bands likewise.")
    if paired(findings, dataset):
        notes.append(
            "Differences are means over trials on equal splits ± their standard error; p is of Wilcoxon’s signed-rank "
            "test, exact and two-sided, with Holm’s correction for the number of rows."
        )
        if findings.config.protocol == "redrawn" and not brings_split(dataset):
            notes.append("Redrawn splits share graphs, which makes such a p somewhat too small.")
    return element(
        "section",
        element("h2", short(dataset)),
        element("p", verdict(findings, dataset)),
        _scores(findings, dataset),
        element("p", " ".join(notes), class_="note"),
        element("div", *drawn, class_="pair"),
    )


def _scores(findings: Findings, dataset: str) -> Markup:
    """A line for each row: the paper's figure, ours, both on an axis, and the paired difference."""
    cells, wanted, tested = findings.on(dataset), columns(findings, dataset), paired(findings, dataset)
    ends = [end for cell in cells for end in _extent(cell)]
    axis = (min(ends), max(ends)) if by_model(findings, dataset) and min(ends) < max(ends) else None
    best = max(cells, key=mean_of)
    heads = [element("th", name, scope="col") for name in ("method", *wanted)]
    if axis:
        heads.append(element("th", f"{axis[0]:.3g} to {axis[1]:.3g}", scope="col", class_="sketch"))
    if tested:
        against = OURS if findings.experiment.kind == "scores" else "adaptive"
        heads += [element("th", name, scope="col") for name in (f"less {against}", "p", "trials above, below")]
    lines = []
    for cell in cells:
        line = [element("th", cell.row.name, scope="row")]
        for column in wanted.values():
            is_best = cell is best and cell.summary and column == ("ours", "test")
            line.append(element("td", entry(cell, *column), class_="number best" if is_best else "number"))
        if axis:
            line.append(element("td", _sketch(cell, axis), class_="sketch"))
        if tested:
            texts = _difference(*tested[cell.row.name], cell.unit) if cell.row.name in tested else ("", "", "")
            line += [element("td", text, class_="number") for text in texts]
        lines.append(element("tr", *line, class_="ours" if cell.row.model == OURS else None))
    body = element("table", element("thead", element("tr", *heads)), element("tbody", *lines))
    return element("div", body, class_="scroll")


def _extent(cell: Cell) -> list[float]:
    found, s = cell.row.test.get(cell.dataset), cell.summary
    spread = 0.0 if s is None or math.isnan(s.test_std) else s.test_std
    return [*([found.mean] if found else []), *([s.test_mean - spread, s.test_mean + spread] if s else [])]


def _sketch(cell: Cell, axis: tuple[float, float]) -> str:
    s, found = cell.summary, cell.row.test.get(cell.dataset)
    if s is None:
        return ""
    title = f"{cell.row.name}: {ours(cell)}, paper {printed(cell)}"
    std, ink = None if math.isnan(s.test_std) else s.test_std, colour(0) if cell.row.model == OURS else "var(--soft)"
    return interval(title, s.test_mean, std, axis, ink, found.mean if found else None)


def _difference(pair: Paired, p: float, unit: float) -> tuple[str, str, str]:
    digits = 2 if unit == 100 else 4
    error = "" if math.isnan(pair.error) else f" ± {pair.error:.{digits}f}"
    return f"{pair.mean:+.{digits}f}{error}".replace("-", "−"), f"{p:.2g}", f"{pair.wins}, {pair.losses}"


def _elsewhere(findings: Findings) -> Markup:
    """The same rows under the other protocols."""
    names = findings.config.protocol, *findings.elsewhere
    parts = [element("p", f"{name}: {PROTOCOLS[name]}.") for name in names]
    for dataset in (name for name in findings.datasets if not brings_split(name)):
        found = [findings.on(dataset)]
        found += [[cell for cell in cells if cell.dataset == dataset] for cells in findings.elsewhere.values()]
        lines = [[cells[0].row.name, *map(ours, cells)] for cells in zip(*found, strict=True)]
        lines = [line for line in lines if any(text != "–" for text in line[1:])]
        parts += [element("h3", short(dataset)), _table(["method", *names], lines)] if lines else []
    return element("section", element("h2", "Other protocols"), *parts)


def _cost(findings: Findings, records: Sequence[dict[str, Any]]) -> Markup:
    """Parameters and training time of each row."""
    datasets = [dataset for dataset in findings.datasets if by_model(findings, dataset)]
    head = ["method", *(f"{short(d)}: {what}" for d in datasets for what in ("parameters", "seconds a trial"))]
    lines = []
    for row in findings.rows:
        found = [findings.cell(row.name, dataset) for dataset in datasets]
        sums = [cell.summary if cell else None for cell in found]
        told = [(f"{s.parameters:,}", f"{s.seconds:.1f}") if s else ("–", "–") for s in sums]
        lines.append([row.name, *(text for pair in told for text in pair)])
    where = ", ".join(sorted({record["result"]["device"] for record in records}))
    total = clock(sum(record["result"]["seconds"] for record in records))
    told = f"Training and validation of the {len(records)} trials counted here took {total} in all, on {where}."
    if (jobs := max(record.get("side_by_side", 0) for record in records)) > 1:
        told += f" Up to {jobs} ran side by side, which makes each of them longer."
    return element("section", element("h2", "Size and cost"), element("p", told), _table(head, lines))


def _provenance(findings: Findings, records: Sequence[dict[str, Any]]) -> Markup:
    """Which data, code and machines."""

    def all_of(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    facts = {"ledger": str(findings.ledger), "commits": all_of(record.get("commit") for record in records)}
    facts |= {name: all_of(r.get("versions", {}).get(name) for r in records) for name in ("mnagt", "torch")}
    facts["dates"] = all_of(str(record.get("date"))[:10] for record in records)
    for dataset in findings.datasets:
        known = [record["dataset"] for c in findings.on(dataset) for record in c.known.values() if "dataset" in record]
        words = "{graphs:,} graphs, {nodes:,} nodes, {edges:,} edges, digest {digest}"
        facts |= {short(dataset): all_of(words.format(**each) for each in known)} if known else {}
    lines = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in facts.items()]
    body = element("table", element("tbody", *lines), class_="facts")
    return element("section", element("h2", "Where it comes from"), body)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Markup:
    names = element("tr", *(element("th", name, scope="col") for name in head))
    rows = []
    for first, *rest in lines:
        cells = [element("td", text, class_="number") for text in rest]
        rows.append(element("tr", element("th", first, scope="row"), *cells, class_="ours" if first == OURS else None))
    return element("div", element("table", element("thead", names), element("tbody", *rows)), class_="scroll")
