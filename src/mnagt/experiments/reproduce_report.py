"""The results of an experiment: tables and conclusions as text, a Markdown file, figures, and an HTML page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from mnagt.experiments.reproduce import Cell, Findings, format_score, has_official_split
from mnagt.experiments.reproduce_tables import OURS, PAPER, PROTOCOLS, QUICK_EPOCHS
from mnagt.files import write_text
from mnagt.migrations import SETTINGS
from mnagt.reports.charts import Bar, bar_chart, line_chart, mean_series
from mnagt.reports.page import render_page
from mnagt.reports.picture import Picture
from mnagt.reports.theme import series_style
from mnagt.training.progress import clock

LEVEL = 0.05
"""A p below it counts as shown."""


def write_report(out: Path, findings: Findings) -> None:
    """Write the page, the table and the figures (SVG and PNG) into ``out``."""
    for dataset in findings.datasets:
        for name, picture in draw_figures(findings, dataset).items():
            picture.save(out / "figures" / name)
    write_text(out / f"{findings.name}.md", to_markdown(findings))
    write_text(out / "report.html", build_page(findings))


def short_name(dataset: str) -> str:
    """The name of a data set that may be a path."""
    return Path(dataset).stem


# --- tables and notices ---


def list_columns(findings: Findings, dataset: str) -> dict[str, tuple[str, str]]:
    """The columns of figures on a data set by their heads: who found it, and on which part."""
    cells = findings.on(dataset)
    has_paper = any(dataset in cell.row.test or dataset in cell.row.count for cell in cells)
    people = ("paper", "ours") if has_paper else ("ours",)
    if any(dataset in cell.row.valid for cell in cells):
        parts = {"validation": "valid", "test": "test"}
        return {f"{who}, {name}": (who, part) for name, part in parts.items() for who in people}
    columns = {who: (who, "test") for who in people}
    if any(cell.unique for cell in cells):
        columns["ours, without duplicates"] = ("ours", "unique")
    return columns


def build_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """All figures: a head, and a line for each row."""
    head, lines = ["method"], {row.name: [row.name] for row in findings.rows}
    for dataset in findings.datasets:
        columns = list_columns(findings, dataset)
        head += [f"{short_name(dataset)}, {name}" for name in columns]
        for name, line in lines.items():
            cell = findings.cell(name, dataset)
            line += [cell.show(*column) for column in columns.values()]
    return head, list(lines.values())


def to_markdown(findings: Findings) -> str:
    """The table and what it says, for a README."""
    head, lines = build_table(findings)
    bold = [[f"**{cell}**" for cell in line] if line[0] == OURS else line for line in lines]
    drawn = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *bold])
    parts = [f"## {findings.experiment.title}", findings.experiment.about, drawn, *list_notices(findings)]
    if findings.experiment.kind != "parameters":
        parts += [describe_protocol(findings), *summarise_datasets(findings)]
    return "\n\n".join(parts) + "\n"


def describe_protocol(findings: Findings) -> str:
    """How it was measured."""
    count, first = len(findings.config.repeats(findings.experiment.seeds)), findings.config.first_seed
    repeats = f"{count} folds" if findings.config.protocol == "folds" else f"seeds {first} to {first + count - 1}"
    words = PROTOCOLS[findings.config.protocol]
    if all(map(has_official_split, findings.datasets)):
        words = "the official split of each data set; trials differ in their weights"
    return (
        f"Protocol: {words} ({repeats}). Validation chooses the epoch; the test part is scored once. Figures are means "
        "± standard deviations."
    )


def list_notices(findings: Findings) -> list[str]:
    """Warnings that a reader needs before using a score: quick runs, missing trials, different data."""
    lines = []
    if findings.config.is_quick:
        lines.append(f"A quick look, {QUICK_EPOCHS} epochs and few seeds: no figure here is a result.")
    lines += findings.problems
    count, wanted = len(findings.records()), sum(len(cell.records) for cell in findings.cells)
    if count < wanted:
        lines.append(f"Incomplete: {count} of {wanted} trials are in the ledger; what is missing shows as –.")
    for dataset in findings.datasets:
        if _differ([record for record in findings.records(dataset) if "dataset" in record]):
            lines.append(f"{short_name(dataset)}: the trials ran on different versions of the data set.")
    return lines


def _differ(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether trials ran on different data. Digests of 0.1, known by its names of settings, are of another kind."""
    digests: dict[bool, set[str]] = {True: set(), False: set()}
    for record in records:
        digests[bool(SETTINGS.keys() & record["config"]["train"].keys())].add(record["dataset"]["digest"])
    counts = {tuple(record["dataset"].get(name) for name in ("graphs", "nodes", "edges")) for record in records}
    return any(len(each) > 1 for each in (counts, *digests.values()))


# --- conclusions ---


def summarise_dataset(findings: Findings, dataset: str) -> str:
    """The conclusion for a data set, computed from the scores."""
    cells_by_model = findings.by_model(dataset)
    match findings.experiment.kind:
        case "scores":
            return _best(findings, dataset)
        case "ablation" if cells_by_model:
            return " ".join(_order(findings, cells) for cells in cells_by_model.values())
        case "sensitivity" if cells_by_model:
            return " ".join(_range(cells) for cells in cells_by_model.values())
    return "Nothing of it was run yet."


def summarise_datasets(findings: Findings) -> list[str]:
    """The conclusion for each data set; none for counted parameters."""
    if findings.experiment.kind == "parameters":
        return []
    return [f"{short_name(dataset)}: {summarise_dataset(findings, dataset)}" for dataset in findings.datasets]


def _best(findings: Findings, dataset: str) -> str:
    """Is our default the best? Only a paired test against every row can say so."""
    default, cells = findings.cell(OURS, dataset), findings.on(dataset)
    others = [cell for cell in cells if cell.summary and cell.row.name != OURS]
    if default.summary is None or not others:
        return "Not enough was run to compare."
    rows = f"the {len(others) + 1} rows" + ("" if len(others) + 1 == len(cells) else f" run (of {len(cells)})")
    if higher := [f"{c.row.name} ({c.ours})" for c in others if c.mean >= default.mean]:
        return f"{OURS} ({default.ours}) is not the best of {rows}; as high or higher: {', '.join(higher)}."
    following = max(others, key=lambda cell: cell.mean)
    text = f"{OURS} has the highest mean of {rows}, {default.ours}; next is {following.row.name}, {following.ours}. "
    tested = findings.compare(dataset)
    least = 2 / 2 ** min(len(pair.gaps) for pair, _ in tested.values())
    if least >= LEVEL:
        return text + f"So few trials cannot show more: p of the paired test is {least:.2g} at the least."
    if unshown := [f"{name} (p {p:.2g})" for name, (_, p) in tested.items() if p >= LEVEL]:
        return text + f"The paired test does not show it above {', '.join(unshown)}: that it is best is not shown."
    most = max(p for _, p in tested.values())
    return text + f"The paired test shows it above each of them (p {most:.2g} at most)."


def _order(findings: Findings, cells: Sequence[Cell]) -> str:
    """Do the mixers come in the paper's order?"""
    model, dataset = cells[0].row.model, cells[0].dataset
    if len(cells) < len(PAPER["ablation"]):
        return f"{model}: not every mixer was run."
    ordered = sorted(cells, key=lambda cell: cell.mean, reverse=True)
    signs = [">" if high.mean > low.mean else "=" for high, low in pairwise(ordered)]
    mixers = " ".join(f"{c.row.at} ({c.ours}) {sign}" for c, sign in zip(ordered, [*signs, ""], strict=True)).rstrip()
    is_papers = [cell.row.at for cell in ordered] == list(PAPER["ablation"]) and "=" not in signs
    order = ", the paper's order" if is_papers else f"; the paper's order is {' > '.join(PAPER['ablation'])}"
    tested = {cell.row.at: findings.compare(dataset).get(cell.row.name) for cell in cells}
    apart = " and ".join(str(mixer) for mixer, pair in tested.items() if pair and pair[1] < LEVEL)
    return f"{model}: {mixers}{order}. The paired test tells adaptive from {apart or 'none of the others'}."


def _range(cells: Sequence[Cell]) -> str:
    """At which value of what was varied is the score highest, and lowest?"""
    high, low = max(cells, key=lambda cell: cell.mean), min(cells, key=lambda cell: cell.mean)
    if len(cells) == 1:
        return f"{high.row.model} was run at {high.row.at} alone ({high.ours})."
    if high.mean == low.mean:
        return f"{high.row.model} gives {high.ours} throughout."
    return f"{high.row.model} is highest at {high.row.at} ({high.ours}) and lowest at {low.row.at} ({low.ours})."


# --- figures ---


def draw_figures(findings: Findings, dataset: str) -> dict[str, Picture]:
    """The figures of a data set by the names of their files, as far as there are scores to draw."""
    stem, models = short_name(dataset).lower(), findings.by_model(dataset)
    match findings.experiment.kind:
        case "sensitivity" if models:
            return {f"{stem}-{findings.name}": _draw_sensitivity(findings, dataset)}
        case "ablation":
            gains = {f"{stem}-{findings.name}-{model}": _draw_gains(findings, models[model]) for model in models}
            drawn = {name: picture for name, picture in gains.items() if picture is not None}
            return drawn | _draw_learning(dataset, models.get(OURS, []))
        case "scores":  # ours, the paper's, and the best two others
            cells = [cell for cell in findings.on(dataset) if cell.summary]
            cells.sort(key=lambda cell: (cell.row.model != OURS, cell.row.model != "mnagt-paper", -cell.mean))
            return _draw_learning(dataset, cells[:4])
    return {}


def _draw_learning(dataset: str, cells: Sequence[Cell]) -> dict[str, Picture]:
    """Loss and validation score by epoch, of the trials whose curves are in the ledger."""
    drawn = {}
    for is_loss in (True, False) if cells else ():
        metric = cells[0].metric
        key, what = ("loss", "training loss") if is_loss else (f"valid_{metric}", f"validation {metric}")
        unit, y_label = (1.0, "") if is_loss else (cells[0].unit, cells[0].unit_sign)
        series = []
        for i, cell in enumerate(cells):
            if runs := [record["curves"] for record in cell.known.values() if "curves" in record]:
                values = [[unit * value for value in epoch] for epoch in zip(*(run[key] for run in runs), strict=True)]
                series.append(mean_series(cell.row.name, i, runs[0]["epoch"], values))
        if series:
            name, caption = f"{short_name(dataset).lower()}-{key}", f"{short_name(dataset)}: {what}"
            drawn[name] = line_chart(caption, series, x_label="epoch", y_label=y_label)
    return drawn


def _draw_sensitivity(findings: Findings, dataset: str) -> Picture:
    series, models = [], findings.by_model(dataset)
    for i, (model, cells) in enumerate(models.items()):
        x = [cell.row.at for cell in cells if isinstance(cell.row.at, int)]
        series.append(mean_series(model, i, x, [list(cell.tests.values()) for cell in cells]))
    ticks = sorted({row.at for row in findings.rows if isinstance(row.at, int)})
    (first, *_), axis = next(iter(models.values())), findings.experiment.axis
    caption = f"{short_name(dataset)}: test {first.metric}"
    return line_chart(caption, series, x_label=axis, y_label=first.unit_sign, x_ticks=ticks)


def _draw_gains(findings: Findings, cells: Sequence[Cell]) -> Picture | None:
    """How much other mixers of a model gain over the adaptive one; rings are the paper's differences."""
    bars, model, dataset = [], cells[0].row.model, cells[0].dataset
    tested = findings.compare(dataset)
    for cell in (cell for cell in cells if cell.row.name in tested):
        pair, _ = tested[cell.row.name]
        published, best = cell.row.test.get(dataset), findings.cell(cell.row.against, dataset).row.test.get(dataset)
        ring = published.mean - best.mean if published and best else None
        error = 0.0 if math.isnan(pair.error) else pair.error
        colour = series_style(0 if model == OURS else 1).colour
        bars.append(Bar(str(cell.row.at), pair.mean, colour=colour, error=error, ring=ring))
    caption = f"{short_name(dataset)}: {model} with another mixer, less {model} with the adaptive one"
    return bar_chart(caption, bars, x_label="points") if bars else None


# --- the page ---


def build_page(findings: Findings) -> str:
    """The page: headline, a section for each data set, other protocols, cost, and where the scores come from."""
    records = findings.records()
    return render_page(
        "experiments/reproduce.html",
        findings=findings,
        ours=OURS,
        format_score=format_score,
        notices=list_notices(findings),
        tiles=[_tile(findings, cell) for cell in findings.cells if cell.row.name == OURS and cell.summary],
        protocols=PROTOCOLS,
        protocol=describe_protocol(findings),
        table=build_table(findings),
        datasets=[_show_dataset(findings, dataset) for dataset in findings.datasets],
        count=len(records),
        duration=clock(sum(record["result"]["seconds"] for record in records)),
        devices=_list_unique(record["result"]["device"] for record in records),
        jobs=max((record.get("side_by_side", 0) for record in records), default=0),
        costs=_list_costs(findings),
        provenance=_list_provenance(findings, records),
    )


def _tile(findings: Findings, cell: Cell) -> tuple[str, str, str]:
    number, _, rest = cell.ours.partition(" ")
    name = f"{OURS} on {short_name(cell.dataset)}"
    for row in findings.experiment.rows:
        if row.model == "mnagt-paper" and (claim := row.test.get(cell.dataset)):
            name += f"; the paper’s MNA-GT {format_score(claim.mean, None, cell.unit)}"
    return name, number, f" {rest} {cell.unit_sign}"


def _show_dataset(findings: Findings, dataset: str) -> dict[str, Any]:
    """What the page shows of a data set."""
    cells, has_scores = findings.on(dataset), bool(findings.by_model(dataset))
    is_official = has_official_split(dataset)
    protocols = [findings.cells, *findings.elsewhere.values()]
    repeated = zip(*([cell for cell in each if cell.dataset == dataset] for each in protocols), strict=True)
    by_protocol = [[first.row.name, first.ours, *(cell.ours for cell in others)] for first, *others in repeated]
    return {
        "name": short_name(dataset),
        "summary": summarise_dataset(findings, dataset),
        "cells": cells,
        "columns": list_columns(findings, dataset),
        "axis": _find_axis(cells) if has_scores else None,
        "best": max(cells, key=lambda cell: cell.mean),
        "has_scores": has_scores,
        "differences": findings.compare(dataset),
        "has_official_split": is_official,
        "figures": draw_figures(findings, dataset).values(),
        "by_protocol": [] if is_official else [line for line in by_protocol if set(line[1:]) != {"–"}],
    }


def _find_axis(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """The least and the largest of all scores and ends of deviations; none if they are the same."""
    ends = [cell.row.test[cell.dataset].mean for cell in cells if cell.dataset in cell.row.test]
    ends += [cell.mean + side * cell.deviation for cell in cells if cell.summary for side in (-1, 1)]
    return (min(ends), max(ends)) if min(ends) < max(ends) else None


def _list_costs(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a table: parameters and training time of each row."""
    head, lines = ["method"], {row.name: [row.name] for row in findings.rows}
    for dataset in filter(findings.by_model, findings.datasets):
        head += [f"{short_name(dataset)}: {what}" for what in ("parameters", "seconds a trial")]
        for name, line in lines.items():
            s = findings.cell(name, dataset).summary
            line += [f"{s.parameters:,}", f"{s.seconds:.1f}"] if s else ["–", "–"]
    return head, list(lines.values())


def _list_provenance(findings: Findings, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Data, code and machines that the scores come from."""
    facts = {"ledger": str(findings.ledger), "commits": _list_unique(record.get("commit") for record in records)}
    facts |= {name: _list_unique(r.get("versions", {}).get(name) for r in records) for name in ("mnagt", "torch")}
    facts["dates"] = _list_unique(str(record.get("date"))[:10] for record in records)
    words = "{graphs:,} graphs, {nodes:,} nodes, {edges:,} edges, digest {digest}"
    for dataset in findings.datasets:
        datasets = [record["dataset"] for record in findings.records(dataset) if "dataset" in record]
        facts |= {short_name(dataset): _list_unique(words.format(**each) for each in datasets)} if datasets else {}
    return list(facts.items())


def _list_unique(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))
