"""The results of an experiment as files: an HTML report, a Markdown table, and figures."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mnagt.experiments import reproduce_text as texts
from mnagt.experiments.reproduce import PROTOCOLS, Cell, Findings, has_official_split
from mnagt.experiments.reproduce_tables import OURS
from mnagt.experiments.statistics import Paired
from mnagt.files import write_text
from mnagt.reports.charts import Bar, bar_chart, line_chart, mean_series
from mnagt.reports.page import html, render_page
from mnagt.reports.picture import Picture
from mnagt.reports.theme import series_style
from mnagt.training.progress import clock


def write_report(out: Path, findings: Findings) -> None:
    """Write the page, the table and the figures (SVG and PNG) into ``out``."""
    for dataset in findings.datasets:
        for name, picture in draw_figures(findings, dataset).items():
            picture.save(out / "figures" / name)
    write_text(out / f"{findings.name}.md", texts.to_markdown(findings))
    write_text(out / "report.html", build_page(findings))


# --- figures ---


def draw_figures(findings: Findings, dataset: str) -> dict[str, Picture]:
    """The figures of a data set by the names of their files, as far as there are scores to draw."""
    stem, models = texts.short_name(dataset).lower(), findings.by_model(dataset)
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
    cells.sort(key=lambda cell: (cell.row.model != OURS, cell.row.model != "mnagt-paper", -cell.mean))
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
                series.append(mean_series(cell.row.name, i, runs[0]["epoch"], values))
        if series:
            caption = f"{texts.short_name(dataset)}: {what}"
            drawn[f"{stem}-{key}"] = line_chart(caption, series, x_label="epoch", y_label=y_label)
    return drawn


def _sensitivity(findings: Findings, dataset: str) -> Picture:
    series = []
    for i, (model, cells) in enumerate(findings.by_model(dataset).items()):
        x = [cell.row.at for cell in cells if isinstance(cell.row.at, int)]
        series.append(mean_series(model, i, x, [list(cell.tests.values()) for cell in cells]))
    ticks = sorted({row.at for row in findings.rows if isinstance(row.at, int)})
    cells = [cell for cell in findings.on(dataset) if cell.known]
    caption, axis = f"{texts.short_name(dataset)}: test {cells[0].metric}", findings.experiment.axis
    return line_chart(caption, series, x_label=axis, y_label=_unit_sign(cells), x_ticks=ticks)


def _gains(findings: Findings, dataset: str, model: str) -> Picture | None:
    """How much other mixers gain over the adaptive one; rings are the paper's differences."""
    bars = []
    for row, (pair, _) in findings.compare(dataset).items():
        cell = findings.cell(row, dataset)
        if cell is not None and cell.row.model == model:
            other = findings.cell(cell.row.against, dataset)
            found, best = cell.row.test.get(dataset), other.row.test.get(dataset) if other else None
            ring = found.mean - best.mean if found and best else None
            error = 0.0 if math.isnan(pair.error) else pair.error
            colour = series_style(0 if model == OURS else 1).colour
            bars.append(Bar(str(cell.row.at), pair.mean, colour=colour, error=error, ring=ring))
    caption = f"{texts.short_name(dataset)}: {model} with another mixer, less {model} with the adaptive one"
    return bar_chart(caption, bars, x_label="points") if bars else None


def _unit_sign(cells: Iterable[Cell]) -> str:
    return "%" if any(cell.unit == 100 for cell in cells) else ""


# --- the page ---


def build_page(findings: Findings) -> str:
    """The page: headline, a section for each data set, other protocols, cost, and where the scores come from."""
    shown: dict[str, Any] = {"findings": findings, "notices": texts.list_notices(findings), "protocols": PROTOCOLS}
    shown["tiles"] = [_tile(findings, cell) for cell in findings.cells if cell.row.name == OURS and cell.summary]
    if findings.experiment.kind == "parameters":
        return render_page("experiments/reproduce.html", **shown, table=texts.build_table(findings))
    records = [record for cell in findings.cells for record in cell.known.values()]
    return render_page(
        "experiments/reproduce.html",
        **shown,
        protocol=texts.describe_protocol(findings),
        datasets=[_show_dataset(findings, dataset) for dataset in findings.datasets],
        other_protocols=_list_other_protocols(findings),
        count=len(records),
        duration=clock(sum(record["result"]["seconds"] for record in records)),
        devices=_list_unique(record["result"]["device"] for record in records),
        jobs=max((record.get("side_by_side", 0) for record in records), default=0),
        costs=_list_costs(findings),
        provenance=_list_provenance(findings, records),
    )


def _tile(findings: Findings, cell: Cell) -> tuple[str, str, str]:
    number, _, rest = texts.format_ours(cell).partition(" ")
    name = f"{OURS} on {texts.short_name(cell.dataset)}"
    for row in findings.experiment.rows:
        if row.model == "mnagt-paper" and (claim := row.test.get(cell.dataset)):
            name += f"; the paper’s MNA-GT {texts.format_score(claim.mean, None, cell.unit)}"
    return (name, number, f" {rest} {_unit_sign([cell])}")


def _show_dataset(findings: Findings, dataset: str) -> dict[str, Any]:
    return {
        "name": texts.short_name(dataset),
        "summary": texts.summarise_dataset(findings, dataset),
        "table": _scores(findings, dataset),
        "has_scores": bool(findings.by_model(dataset)),
        "has_differences": bool(findings.compare(dataset)),
        "is_redrawn": findings.config.protocol == "redrawn" and not has_official_split(dataset),
        "figures": [html.figure(picture) for picture in draw_figures(findings, dataset).values()],
    }


def _scores(findings: Findings, dataset: str) -> Markup:
    """A row for each method: the paper's score, ours, both on an axis, and the paired difference."""
    cells, wanted = findings.on(dataset), texts.list_columns(findings, dataset)
    tested = findings.compare(dataset)
    ends = [end for cell in cells for end in _extent(cell)]
    axis = (min(ends), max(ends)) if findings.by_model(dataset) and min(ends) < max(ends) else None
    columns: list[str | tuple[str, str]] = ["method", *wanted]
    if axis:
        columns.append((f"{axis[0]:.3g} to {axis[1]:.3g}", "sketch"))
    if tested:
        against = OURS if findings.experiment.kind == "scores" else "adaptive"
        columns += [f"less {against}", "p", "trials above, below"]
    rows, best = [], max(cells, key=lambda cell: cell.mean)
    for cell in cells:
        line: list[Any] = [cell.row.name]
        for column in wanted.values():
            is_best = cell is best and cell.summary and column == ("ours", "test")
            text = texts.format_entry(cell, *column)
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
    label = f"{cell.row.name}: {texts.format_ours(cell)}, paper {texts.format_published(cell)}"
    deviation, ring = 0.0 if math.isnan(s.test_std) else s.test_std, found.mean if found else None
    return html.interval(label, s.test_mean, *axis, deviation, ring, is_ours=cell.row.model == OURS)


def _difference(pair: Paired, p: float, unit: float) -> tuple[str, str, str]:
    digits = 2 if unit == 100 else 4
    error = "" if math.isnan(pair.error) else f" ± {pair.error:.{digits}f}"
    return f"{pair.mean:+.{digits}f}{error}".replace("-", "−"), f"{p:.2g}", f"{pair.wins}, {pair.losses}"


def _list_other_protocols(findings: Findings) -> list[tuple[str, list[list[str]]]]:
    """The same rows under the other protocols, for each data set that they split."""
    tables = []
    for dataset in (name for name in findings.datasets if not has_official_split(name)):
        found = [findings.on(dataset)]
        found += [[cell for cell in cells if cell.dataset == dataset] for cells in findings.elsewhere.values()]
        lines = [[cells[0].row.name, *map(texts.format_ours, cells)] for cells in zip(*found, strict=True)]
        if lines := [line for line in lines if any(text != "–" for text in line[1:])]:
            tables.append((texts.short_name(dataset), lines))
    return tables


def _list_costs(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a table: parameters and training time of each row."""
    datasets = [dataset for dataset in findings.datasets if findings.by_model(dataset)]
    lines = []
    for row in findings.rows:
        cells = [findings.cell(row.name, dataset) for dataset in datasets]
        sums = [cell.summary if cell else None for cell in cells]
        pairs = [(f"{s.parameters:,}", f"{s.seconds:.1f}") if s else ("–", "–") for s in sums]
        lines.append([row.name, *(text for pair in pairs for text in pair)])
    heads = [
        f"{texts.short_name(dataset)}: {what}" for dataset in datasets for what in ("parameters", "seconds a trial")
    ]
    return ["method", *heads], lines


def _list_provenance(findings: Findings, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Data, code and machines that the scores come from."""
    facts = {"ledger": str(findings.ledger), "commits": _list_unique(record.get("commit") for record in records)}
    facts |= {name: _list_unique(r.get("versions", {}).get(name) for r in records) for name in ("mnagt", "torch")}
    facts["dates"] = _list_unique(str(record.get("date"))[:10] for record in records)
    for dataset in findings.datasets:
        found = [record["dataset"] for c in findings.on(dataset) for record in c.known.values() if "dataset" in record]
        words = "{graphs:,} graphs, {nodes:,} nodes, {edges:,} edges, digest {digest}"
        facts |= {texts.short_name(dataset): _list_unique(words.format(**each) for each in found)} if found else {}
    return list(facts.items())


def _list_unique(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))
