"""What an experiment found, in words: tables, what a reader must know, and what the figures say."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from mnagt.experiments import paper
from mnagt.experiments.paper import Printed
from mnagt.experiments.reproduce import PROTOCOLS, QUICK_EPOCHS, Cell, Findings, brings_split
from mnagt.experiments.reproduce_tables import OURS
from mnagt.experiments.statistics import Paired, holm

LEVEL = 0.05
"""A p below it counts as shown."""


# --- figures as text ---


def figure(value: float, std: float | None, unit: float) -> str:
    """As the paper prints it: two digits of a percentage, four of a share."""
    digits = 2 if unit == 100 else 4
    return f"{value:.{digits}f}" + ("" if std is None or math.isnan(std) else f" ± {std:.{digits}f}")


def ours(cell: Cell, part: str = "test") -> str:
    """What we found; says so if trials are missing."""
    s = cell.summary
    if s is None:
        return "–" if cell.counted is None else f"{cell.counted:,}"
    text = figure(s.test_mean, s.test_std, cell.unit) if part == "test" else figure(s.valid_mean, None, cell.unit)
    return text if s.trials == len(cell.records) else f"{text} ({s.trials} of {len(cell.records)})"


def printed(cell: Cell, part: str = "test") -> str:
    """What the paper prints."""
    if count := cell.row.count.get(cell.dataset):
        return count
    found: Printed | None = getattr(cell.row, part).get(cell.dataset)
    return "–" if found is None else figure(*found, 1.0 if found.mean < 1 else 100.0)


def short(dataset: str) -> str:
    """The name of a data set that may be a path."""
    return Path(dataset).stem


# --- tables ---


def columns(findings: Findings, dataset: str) -> dict[str, tuple[str, str]]:
    """The columns of figures on a data set by their heads: who found it, and on which part."""
    cells = findings.on(dataset)
    has_paper = any(dataset in cell.row.test or dataset in cell.row.count for cell in cells)
    people = ("paper", "ours") if has_paper else ("ours",)
    if any(dataset in cell.row.valid for cell in cells):
        parts = {"validation": "valid", "test": "test"}
        return {f"{who}, {name}": (who, part) for name, part in parts.items() for who in people}
    return {who: (who, "test") for who in people}


def entry(cell: Cell, who: str, part: str) -> str:
    return printed(cell, part) if who == "paper" else ours(cell, part)


def table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """All figures: a head, and a line for each row."""
    head, lines = ["method"], {row.name: [row.name] for row in findings.rows}
    for dataset in findings.datasets:
        wanted = columns(findings, dataset)
        head += [f"{short(dataset)}, {name}" for name in wanted]
        for row in findings.rows:
            cell = findings.cell(row.name, dataset) or Cell(row, dataset)
            lines[row.name] += [entry(cell, *column) for column in wanted.values()]
    return head, list(lines.values())


def markdown(findings: Findings) -> str:
    """The table and what it says, for a README."""
    head, lines = table(findings)
    bold = [[f"**{cell}**" for cell in line] if line[0] == OURS else line for line in lines]
    drawn = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *bold])
    parts = [f"## {findings.experiment.title}", findings.experiment.about, drawn, *notices(findings)]
    if findings.experiment.kind != "parameters":
        parts += [protocol(findings), *verdicts(findings)]
    return "\n\n".join(parts) + "\n"


def protocol(findings: Findings) -> str:
    """How it was measured."""
    count, first = len(findings.config.repeats(findings.experiment)), findings.config.first_seed
    repeats = f"{count} folds" if findings.config.protocol == "folds" else f"seeds {first} to {first + count - 1}"
    words = PROTOCOLS[findings.config.protocol]
    if all(map(brings_split, findings.datasets)):
        words = "the official split of each data set; trials differ in their weights"
    return (
        f"Protocol: {words} ({repeats}). Validation chooses the epoch; the test part is scored once. Figures are means "
        "± standard deviations."
    )


def notices(findings: Findings) -> list[str]:
    """What a reader must know before believing a figure."""
    told = []
    if findings.config.is_quick:
        told.append(f"A quick look, {QUICK_EPOCHS} epochs and few seeds: no figure here is a result.")
    told += findings.problems
    there, wanted = sum(len(c.known) for c in findings.cells), sum(len(c.records) for c in findings.cells)
    if there < wanted:
        told.append(f"Incomplete: {there} of {wanted} trials are in the ledger; what is missing shows as –.")
    for dataset in findings.datasets:
        records = [record for cell in findings.on(dataset) for record in cell.known.values()]
        if len({record["dataset"]["digest"] for record in records if "dataset" in record}) > 1:
            told.append(f"{short(dataset)}: the trials ran on different versions of the data set.")
    return told


# --- what the figures say ---


def verdict(findings: Findings, dataset: str) -> str:
    """What is found on a data set, as it follows from the numbers."""
    found = by_model(findings, dataset)
    match findings.experiment.kind:
        case "scores":
            return _best(findings, dataset)
        case "ablation" if found:
            return " ".join(_order(findings, cells) for cells in found.values())
        case "sensitivity" if found:
            return " ".join(_range(cells) for cells in found.values())
    return "Nothing of it was run yet."


def verdicts(findings: Findings) -> list[str]:
    """That of each data set, where trials were asked for."""
    if findings.experiment.kind == "parameters":
        return []
    return [f"{short(dataset)}: {verdict(findings, dataset)}" for dataset in findings.datasets]


def by_model(findings: Findings, dataset: str) -> dict[str, list[Cell]]:
    """The cells that have figures."""
    found: dict[str, list[Cell]] = {}
    for cell in findings.on(dataset):
        if cell.summary:
            found.setdefault(cell.row.model, []).append(cell)
    return found


def mean_of(cell: Cell) -> float:
    return -math.inf if cell.summary is None else cell.summary.test_mean


def paired(findings: Findings, dataset: str) -> dict[str, tuple[Paired, float]]:
    """Each row less the row that it is held against, and p of that, corrected for how many rows there are."""
    pairs = {}
    for cell in findings.on(dataset):
        other = findings.cell(cell.row.against, dataset)
        if other is not None and (pair := cell.less(other)) is not None:
            pairs[cell.row.name] = pair
    corrected = holm([pair.p for pair in pairs.values()])
    return {name: (pair, p) for (name, pair), p in zip(pairs.items(), corrected, strict=True)}


def _best(findings: Findings, dataset: str) -> str:
    """Is our default the best? Only a paired test against every row can say so."""
    default, cells = findings.cell(OURS, dataset), findings.on(dataset)
    others = [cell for cell in cells if cell.summary and cell.row.name != OURS]
    if default is None or default.summary is None or not others:
        return "Not enough was run to compare."
    rows = f"the {len(others) + 1} rows" + ("" if len(others) + 1 == len(cells) else f" run (of {len(cells)})")
    if higher := [f"{c.row.name} ({ours(c)})" for c in others if mean_of(c) >= mean_of(default)]:
        return f"{OURS} ({ours(default)}) is not the best of {rows}; as high or higher: {', '.join(higher)}."
    following = max(others, key=mean_of)
    text = f"{OURS} has the highest mean of {rows}, {ours(default)}; next is {following.row.name}, {ours(following)}. "
    tested = paired(findings, dataset)
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
    if len(cells) < len(paper.ABLATION):
        return f"{model}: not every mixer was run."
    found = sorted(cells, key=mean_of, reverse=True)
    signs = [">" if mean_of(high) > mean_of(low) else "=" for high, low in pairwise(found)]
    text = f"{model}: " + " ".join(
        f"{c.row.at} ({ours(c)}) {sign}" for c, sign in zip(found, [*signs, ""], strict=True)
    )
    is_papers = [cell.row.at for cell in found] == list(paper.ABLATION) and "=" not in signs
    text = text.rstrip() + (
        ", the paper's order. " if is_papers else f"; the paper's order is {' > '.join(paper.ABLATION)}. "
    )
    tested = {cell.row.at: paired(findings, dataset).get(cell.row.name) for cell in cells}
    apart = [str(mixer) for mixer, pair in tested.items() if pair and pair[1] < LEVEL]
    return text + f"The paired test tells adaptive from {' and '.join(apart) or 'none of the others'}."


def _range(cells: Sequence[Cell]) -> str:
    high, low = max(cells, key=mean_of), min(cells, key=mean_of)
    if len(cells) == 1:
        return f"{high.row.model} was run at {high.row.at} alone ({ours(high)})."
    if mean_of(high) == mean_of(low):
        return f"{high.row.model} gives {ours(high)} throughout."
    return f"{high.row.model} is highest at {high.row.at} ({ours(high)}) and lowest at {low.row.at} ({ours(low)})."
