"""The results of an experiment as text: tables, notices and conclusions computed from the statistics."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from mnagt.experiments.reproduce import PROTOCOLS, QUICK_EPOCHS, Cell, Findings, has_official_split
from mnagt.experiments.reproduce_tables import OURS, PAPER, Printed

LEVEL = 0.05
"""A p below it counts as shown."""


# --- scores ---


def format_score(value: float, std: float | None, unit: float) -> str:
    """As the paper prints it: two digits of a percentage, four of a share."""
    digits = 2 if unit == 100 else 4
    return f"{value:.{digits}f}" + ("" if std is None or math.isnan(std) else f" ± {std:.{digits}f}")


def format_ours(cell: Cell, part: str = "test") -> str:
    """Our score; with the number of trials where some are missing."""
    s = cell.summary
    if s is None:
        return "–" if cell.counted is None else f"{cell.counted:,}"
    text = (
        format_score(s.test_mean, s.test_std, cell.unit)
        if part == "test"
        else format_score(s.valid_mean, None, cell.unit)
    )
    return text if s.trials == len(cell.records) else f"{text} ({s.trials} of {len(cell.records)})"


def format_published(cell: Cell, part: str = "test") -> str:
    """The score in the paper."""
    if count := cell.row.count.get(cell.dataset):
        return count
    found: Printed | None = getattr(cell.row, part).get(cell.dataset)
    return "–" if found is None else format_score(*found, 1.0 if found.mean < 1 else 100.0)


def short_name(dataset: str) -> str:
    """The name of a data set that may be a path."""
    return Path(dataset).stem


# --- tables ---


def list_columns(findings: Findings, dataset: str) -> dict[str, tuple[str, str]]:
    """The columns of figures on a data set by their heads: who found it, and on which part."""
    cells = findings.on(dataset)
    has_paper = any(dataset in cell.row.test or dataset in cell.row.count for cell in cells)
    people = ("paper", "ours") if has_paper else ("ours",)
    if any(dataset in cell.row.valid for cell in cells):
        parts = {"validation": "valid", "test": "test"}
        return {f"{who}, {name}": (who, part) for name, part in parts.items() for who in people}
    return {who: (who, "test") for who in people}


def format_entry(cell: Cell, who: str, part: str) -> str:
    return format_published(cell, part) if who == "paper" else format_ours(cell, part)


def build_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """All figures: a head, and a line for each row."""
    head, lines = ["method"], {row.name: [row.name] for row in findings.rows}
    for dataset in findings.datasets:
        wanted = list_columns(findings, dataset)
        head += [f"{short_name(dataset)}, {name}" for name in wanted]
        for row in findings.rows:
            cell = findings.cell(row.name, dataset) or Cell(row, dataset)
            lines[row.name] += [format_entry(cell, *column) for column in wanted.values()]
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
    count, first = len(findings.config.repeats(findings.experiment)), findings.config.first_seed
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
    count, wanted = sum(len(c.known) for c in findings.cells), sum(len(c.records) for c in findings.cells)
    if count < wanted:
        lines.append(f"Incomplete: {count} of {wanted} trials are in the ledger; what is missing shows as –.")
    for dataset in findings.datasets:
        records = [record for cell in findings.on(dataset) for record in cell.known.values()]
        if len({record["dataset"]["digest"] for record in records if "dataset" in record}) > 1:
            lines.append(f"{short_name(dataset)}: the trials ran on different versions of the data set.")
    return lines


# --- conclusions ---


def summarise_dataset(findings: Findings, dataset: str) -> str:
    """The conclusion for a data set, computed from the scores."""
    found = findings.by_model(dataset)
    match findings.experiment.kind:
        case "scores":
            return _best(findings, dataset)
        case "ablation" if found:
            return " ".join(_order(findings, cells) for cells in found.values())
        case "sensitivity" if found:
            return " ".join(_range(cells) for cells in found.values())
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
    if default is None or default.summary is None or not others:
        return "Not enough was run to compare."
    rows = f"the {len(others) + 1} rows" + ("" if len(others) + 1 == len(cells) else f" run (of {len(cells)})")
    if higher := [f"{c.row.name} ({format_ours(c)})" for c in others if c.mean >= default.mean]:
        return f"{OURS} ({format_ours(default)}) is not the best of {rows}; as high or higher: {', '.join(higher)}."
    following = max(others, key=lambda cell: cell.mean)
    text = f"{OURS} has the highest mean of {rows}, {format_ours(default)}; "
    text += f"next is {following.row.name}, {format_ours(following)}. "
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
    found = sorted(cells, key=lambda cell: cell.mean, reverse=True)
    signs = [">" if high.mean > low.mean else "=" for high, low in pairwise(found)]
    text = f"{model}: " + " ".join(
        f"{c.row.at} ({format_ours(c)}) {sign}" for c, sign in zip(found, [*signs, ""], strict=True)
    )
    is_papers = [cell.row.at for cell in found] == list(PAPER["ablation"]) and "=" not in signs
    text = text.rstrip() + (
        ", the paper's order. " if is_papers else f"; the paper's order is {' > '.join(PAPER['ablation'])}. "
    )
    tested = {cell.row.at: findings.compare(dataset).get(cell.row.name) for cell in cells}
    apart = [str(mixer) for mixer, pair in tested.items() if pair and pair[1] < LEVEL]
    return text + f"The paired test tells adaptive from {' and '.join(apart) or 'none of the others'}."


def _range(cells: Sequence[Cell]) -> str:
    high, low = max(cells, key=lambda cell: cell.mean), min(cells, key=lambda cell: cell.mean)
    if len(cells) == 1:
        return f"{high.row.model} was run at {high.row.at} alone ({format_ours(high)})."
    if high.mean == low.mean:
        return f"{high.row.model} gives {format_ours(high)} throughout."
    text = f"{high.row.model} is highest at {high.row.at} ({format_ours(high)})"
    return f"{text} and lowest at {low.row.at} ({format_ours(low)})."
