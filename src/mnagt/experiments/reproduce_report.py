"""The results of an experiment as files: an HTML report, a Markdown table, and figures."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup

from mnagt.experiments import paper
from mnagt.experiments.reproduce import PROTOCOLS, Cell, Findings, has_official_split
from mnagt.experiments.reproduce_tables import OURS
from mnagt.experiments.reproduce_text import (
    build_table,
    compare_rows,
    describe_protocol,
    format_entry,
    format_ours,
    format_published,
    format_score,
    group_by_model,
    list_columns,
    list_notices,
    mean_score,
    short_name,
    summarise_dataset,
    to_markdown,
)
from mnagt.experiments.statistics import Paired
from mnagt.files import write_text
from mnagt.reports.charts import Bar, Series, bar_chart, line_chart
from mnagt.reports.page import html
from mnagt.reports.picture import Picture
from mnagt.reports.theme import series_style
from mnagt.training.progress import clock
from mnagt.version import __version__


def write_report(out: Path, findings: Findings) -> None:
    """Write the page, the table and the figures (SVG and PNG) into ``out``."""
    for dataset in findings.datasets:
        for name, picture in draw_figures(findings, dataset).items():
            picture.save(out / "figures" / name)
    write_text(out / f"{findings.name}.md", to_markdown(findings))
    write_text(out / "report.html", build_page(findings))


# --- figures ---


def draw_figures(findings: Findings, dataset: str) -> dict[str, Picture]:
    """The figures of a data set by the names of their files, as far as there are scores to draw."""
    stem, models = short_name(dataset).lower(), group_by_model(findings, dataset)
    match findings.experiment.kind:
        case "sensitivity" if models:
            return {f"{stem}-{findings.name}": _sensitivity(findings, dataset)}
        case "ablation":
            gains = {f"{stem}-{findings.name}-{model}": _gains(findings, dataset, model) for model in models}
            drawn = {name: picture for name, picture in gains.items() if picture is not None}
            return drawn | _learning(dataset, models.get(OURS, []), stem)
        case "scores":
            return _learning(dataset, _choose_drawn(findings, dataset), stem)
    return {}


def _choose_drawn(findings: Findings, dataset: str) -> list[Cell]:
    """The four whose learning is drawn: ours, the paper's, and the best two others."""
    cells = [cell for cell in findings.on(dataset) if cell.summary]
    cells.sort(key=lambda cell: (cell.row.model != OURS, cell.row.model != "mnagt-paper", -mean_score(cell)))
    return cells[:4]


def _learning(dataset: str, cells: Sequence[Cell], stem: str) -> dict[str, Picture]:
    """Loss and validation score by epoch, of the trials whose curves are in the ledger."""
    if not cells:
        return {}
    metric = cells[0].metric
    wanted = {
        "loss": ("training loss", "", 1.0),
        f"valid_{metric}": (f"validation {metric}", _unit_sign(cells), cells[0].unit),
    }
    drawn = {}
    for key, (what, y_label, unit) in wanted.items():
        series = []
        for i, cell in enumerate(cells):
            if runs := [record["curves"] for record in cell.known.values() if "curves" in record]:
                values = [[unit * value for value in epoch] for epoch in zip(*(run[key] for run in runs), strict=True)]
                series.append(_mean_series(cell.row.name, i, runs[0]["epoch"], values))
        if series:
            caption = f"{short_name(dataset)}: {what}"
            drawn[f"{stem}-{key}"] = line_chart(caption, series, x_label="epoch", y_label=y_label)
    return drawn


def _sensitivity(findings: Findings, dataset: str) -> Picture:
    series = []
    for i, (model, cells) in enumerate(group_by_model(findings, dataset).items()):
        x = [cell.row.at for cell in cells if isinstance(cell.row.at, int)]
        series.append(_mean_series(model, i, x, [list(cell.tests.values()) for cell in cells]))
    ticks = sorted({row.at for row in findings.rows if isinstance(row.at, int)})
    cells = [cell for cell in findings.on(dataset) if cell.known]
    caption, axis = f"{short_name(dataset)}: test {cells[0].metric}", findings.experiment.axis
    return line_chart(caption, series, x_label=axis, y_label=_unit_sign(cells), x_ticks=ticks)


def _mean_series(name: str, number: int, x: Sequence[float], values: Sequence[Sequence[float]]) -> Series:
    """Means in a band of one standard deviation to either side."""
    means = [mean(each) for each in values]
    deviations = [stdev(each) if len(each) > 1 else 0.0 for each in values]
    low, high = ([m + side * s for m, s in zip(means, deviations, strict=True)] for side in (-1, 1))
    return Series(name, series_style(number), x, means, low, high)


def _gains(findings: Findings, dataset: str, model: str) -> Picture | None:
    """How much other mixers gain over the adaptive one; rings are the paper's differences."""
    bars = []
    for row, (pair, _) in compare_rows(findings, dataset).items():
        cell = findings.cell(row, dataset)
        if cell is not None and cell.row.model == model:
            other = findings.cell(cell.row.against, dataset)
            found, best = cell.row.test.get(dataset), other.row.test.get(dataset) if other else None
            ring = found.mean - best.mean if found and best else None
            error = 0.0 if math.isnan(pair.error) else pair.error
            colour = series_style(0 if model == OURS else 1).colour
            bars.append(Bar(str(cell.row.at), pair.mean, colour=colour, error=error, ring=ring))
    caption = f"{short_name(dataset)}: {model} with another mixer, less {model} with the adaptive one"
    return bar_chart(caption, bars, x_label="points") if bars else None


def _unit_sign(cells: Iterable[Cell]) -> str:
    return "%" if any(cell.unit == 100 for cell in cells) else ""


# --- the page ---


def build_page(findings: Findings) -> str:
    """The page: headline, a section for each data set, other protocols, cost, and where the scores come from."""
    blocks = _headline(findings)
    if findings.experiment.kind == "parameters":
        blocks.append(_plain_table(*build_table(findings)))
    else:
        blocks += [_dataset(findings, dataset) for dataset in findings.datasets]
        blocks += [_other_protocols(findings)] if findings.elsewhere else []
        records = [record for cell in findings.cells for record in cell.known.values()]
        blocks += [_cost(findings, records), _provenance(findings, records)] if records else []
    facts = f"mnagt reproduce {findings.name}", f"mnagt {__version__}", "the paper is Li, Chen, He, 2022"
    return html.page(f"{findings.experiment.title}, ours and the paper's", blocks, facts)


def _headline(findings: Findings) -> list[Markup]:
    blocks: list[Markup] = [html.title(findings.experiment.title), html.paragraph(findings.experiment.about, "lead")]
    if notices := list_notices(findings):
        blocks.append(html.notice(notices))
    tiles = [_tile(cell) for cell in findings.cells if cell.row.name == OURS and cell.summary]
    if tiles:
        blocks.append(html.tiles(tiles, has_first=False))
    if findings.experiment.kind != "parameters":
        blocks.append(html.paragraph(describe_protocol(findings), "note"))
    return blocks


def _tile(cell: Cell) -> tuple[str, str, str]:
    number, _, rest = format_ours(cell).partition(" ")
    claims = {**paper.TABLE1["MNA-GT"], **{name: test for name, (_, test) in paper.TABLE2["MNA-GT"].items()}}
    name = f"{OURS} on {short_name(cell.dataset)}"
    if claim := claims.get(cell.dataset):
        name += f"; the paper’s MNA-GT {format_score(claim.mean, None, cell.unit)}"
    return (name, number, f" {rest} {_unit_sign([cell])}")


def _dataset(findings: Findings, dataset: str) -> Markup:
    notes = []
    if group_by_model(findings, dataset):
        notes.append("Dots are our means with one deviation to either side, rings the paper’s; bands likewise.")
    if compare_rows(findings, dataset):
        notes.append(
            "Differences are means over trials on equal splits ± their standard error; p is of Wilcoxon’s signed-rank "
            "test, exact and two-sided, with Holm’s correction for the number of rows."
        )
        if findings.config.protocol == "redrawn" and not has_official_split(dataset):
            notes.append("Redrawn splits share graphs, which makes such a p somewhat too small.")
    return html.section(
        short_name(dataset),
        [
            html.paragraph(summarise_dataset(findings, dataset)),
            _scores(findings, dataset),
            html.paragraph(" ".join(notes), "note"),
            html.grid([html.figure(picture) for picture in draw_figures(findings, dataset).values()]),
        ],
    )


def _scores(findings: Findings, dataset: str) -> Markup:
    """A row for each method: the paper's score, ours, both on an axis, and the paired difference."""
    cells, wanted, tested = findings.on(dataset), list_columns(findings, dataset), compare_rows(findings, dataset)
    ends = [end for cell in cells for end in _extent(cell)]
    axis = (min(ends), max(ends)) if group_by_model(findings, dataset) and min(ends) < max(ends) else None
    columns: list[str | tuple[str, str]] = ["method", *wanted]
    if axis:
        columns.append((f"{axis[0]:.3g} to {axis[1]:.3g}", "sketch"))
    if tested:
        against = OURS if findings.experiment.kind == "scores" else "adaptive"
        columns += [f"less {against}", "p", "trials above, below"]
    rows, best = [], max(cells, key=mean_score)
    for cell in cells:
        line: list[Any] = [cell.row.name]
        for column in wanted.values():
            is_best = cell is best and cell.summary and column == ("ours", "test")
            text = format_entry(cell, *column)
            line.append(html.mark(text, "best") if is_best else text)
        if axis:
            line.append(_interval(cell, axis))
        if tested:
            line += _difference(*tested[cell.row.name], cell.unit) if cell.row.name in tested else ("", "", "")
        rows.append(line)
    return html.table(columns, rows, ["ours" if cell.row.model == OURS else "" for cell in cells])


def _extent(cell: Cell) -> list[float]:
    found, s = cell.row.test.get(cell.dataset), cell.summary
    spread = 0.0 if s is None or math.isnan(s.test_std) else s.test_std
    return [*([found.mean] if found else []), *([s.test_mean - spread, s.test_mean + spread] if s else [])]


def _interval(cell: Cell, axis: tuple[float, float]) -> str:
    s, found = cell.summary, cell.row.test.get(cell.dataset)
    if s is None:
        return ""
    label = f"{cell.row.name}: {format_ours(cell)}, paper {format_published(cell)}"
    deviation, ring = 0.0 if math.isnan(s.test_std) else s.test_std, found.mean if found else None
    return html.interval(label, s.test_mean, *axis, deviation, ring, is_ours=cell.row.model == OURS)


def _difference(pair: Paired, p: float, unit: float) -> tuple[str, str, str]:
    digits = 2 if unit == 100 else 4
    error = "" if math.isnan(pair.error) else f" ± {pair.error:.{digits}f}"
    return f"{pair.mean:+.{digits}f}{error}".replace("-", "−"), f"{p:.2g}", f"{pair.wins}, {pair.losses}"


def _other_protocols(findings: Findings) -> Markup:
    """The same rows under the other protocols."""
    names = findings.config.protocol, *findings.elsewhere
    blocks: list[Markup] = [html.paragraph(f"{name}: {PROTOCOLS[name]}.") for name in names]
    for dataset in (name for name in findings.datasets if not has_official_split(name)):
        found = [findings.on(dataset)]
        found += [[cell for cell in cells if cell.dataset == dataset] for cells in findings.elsewhere.values()]
        lines = [[cells[0].row.name, *map(format_ours, cells)] for cells in zip(*found, strict=True)]
        lines = [line for line in lines if any(text != "–" for text in line[1:])]
        blocks += [html.heading(short_name(dataset)), _plain_table(["method", *names], lines)] if lines else []
    return html.section("Other protocols", blocks)


def _cost(findings: Findings, records: Sequence[dict[str, Any]]) -> Markup:
    """Parameters and training time of each row."""
    datasets = [dataset for dataset in findings.datasets if group_by_model(findings, dataset)]
    columns = ["method", *(f"{short_name(d)}: {what}" for d in datasets for what in ("parameters", "seconds a trial"))]
    lines = []
    for row in findings.rows:
        cells = [findings.cell(row.name, dataset) for dataset in datasets]
        sums = [cell.summary if cell else None for cell in cells]
        pairs = [(f"{s.parameters:,}", f"{s.seconds:.1f}") if s else ("–", "–") for s in sums]
        lines.append([row.name, *(text for pair in pairs for text in pair)])
    devices = ", ".join(sorted({record["result"]["device"] for record in records}))
    total = clock(sum(record["result"]["seconds"] for record in records))
    text = f"Training and validation of the {len(records)} trials counted here took {total} in all, on {devices}."
    if (jobs := max(record.get("side_by_side", 0) for record in records)) > 1:
        text += f" Up to {jobs} ran side by side, which makes each of them longer."
    return html.section("Size and cost", [html.paragraph(text), _plain_table(columns, lines)])


def _provenance(findings: Findings, records: Sequence[dict[str, Any]]) -> Markup:
    """Data, code and machines that the scores come from."""

    def list_unique(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    facts = {"ledger": str(findings.ledger), "commits": list_unique(record.get("commit") for record in records)}
    facts |= {name: list_unique(r.get("versions", {}).get(name) for r in records) for name in ("mnagt", "torch")}
    facts["dates"] = list_unique(str(record.get("date"))[:10] for record in records)
    for dataset in findings.datasets:
        found = [record["dataset"] for c in findings.on(dataset) for record in c.known.values() if "dataset" in record]
        words = "{graphs:,} graphs, {nodes:,} nodes, {edges:,} edges, digest {digest}"
        facts |= {short_name(dataset): list_unique(words.format(**each) for each in found)} if found else {}
    return html.section("Where it comes from", [html.table([], list(facts.items()), is_wrapped=True)])


def _plain_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> Markup:
    lines = list(lines)
    return html.table(columns, lines, ["ours" if line[0] == OURS else "" for line in lines])
