"""Drift of graphs against those that a model was trained on, as figures and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.files import write_text
from mnagt.inference.domain import LEVEL
from mnagt.inference.drift import BinCounts, Bins, Drift, count_bins, measure_drift
from mnagt.inference.ensemble import load_models
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.predict import select_graphs
from mnagt.reports.charts import Bar, bar_chart
from mnagt.reports.page import html
from mnagt.reports.theme import series_style

SHOWN_GRAPHS = 10
"""Graphs listed, the farthest first."""
BATCH_SIZE = 256


@dataclass(frozen=True, eq=False)
class Monitored:
    """How some graphs differ from the training graphs."""

    trained: TrainedModel
    graphs: int
    outside: int
    """Graphs with a distance above 1."""
    farthest: list[tuple[str, float]]
    """Names and distances of the farthest graphs."""
    bins: dict[str, Bins]
    counts: BinCounts
    drifts: dict[str, Drift]

    @property
    def drifted(self) -> list[str]:
        """The features that have drifted."""
        return [name for name, drift in self.drifts.items() if drift.is_significant]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table: a line for each feature."""
        rows = [
            [describe_feature(self.trained, name), f"{each.psi:.3f}", f"{each.by_chance:.3f}", verdict]
            for name, each in self.drifts.items()
            for verdict in ["drift" if each.is_significant else "-"]
        ]
        return ["feature", "PSI", "by chance", "verdict"], rows

    def summary(self) -> str:
        share = 100 * self.outside / self.graphs
        return (
            f"{self.outside:,} of {self.graphs:,} graphs ({share:.1f} %) are farther from the training graphs than "
            f"{100 * LEVEL:.0f} % of the validation graphs"
        )


def monitor(
    folder: Path | str,
    dataset: str,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    descriptors: str | None = None,
    device: str = "auto",
) -> Monitored:
    """Compare graphs with those that the model in ``folder`` was trained on: sizes, categories and distances.

    The arguments are those of ``mnagt.predict``. No targets are needed.
    """
    trained = load_models([folder], device=device)
    if trained.domain is None:
        raise InputError(
            f"{folder}: knows nothing of its training graphs; models trained by mnagt 0.2 do: train it again"
        )
    selected = select_graphs(trained, dataset, graphs=graphs, smiles=smiles, descriptors=descriptors)
    if len(selected.indices) == 0:
        raise InputError(f"{dataset}: no graph to compare")
    _, distances = trained.outputs_with_distances(selected.graphs, selected.indices, pick_device(device))
    assert distances is not None
    aligned, bins = trained.align(selected.graphs), dict(trained.domain.bins)
    counts: dict[str, torch.Tensor] = {}
    for start in range(0, len(selected.indices), BATCH_SIZE):
        some = slice(start, start + BATCH_SIZE)
        for name, counted in count_bins(bins, aligned.batch(selected.indices[some]), distances[some]).items():
            counts[name] = counts.get(name, 0) + counted
    order = distances.argsort(descending=True)[:SHOWN_GRAPHS].tolist()
    farthest = [(selected.names[i], float(distances[i])) for i in order]
    return Monitored(
        trained, len(distances), int((distances > 1).sum()), farthest, bins, counts, measure_drift(bins, counts)
    )


def describe_feature(trained: TrainedModel, name: str) -> str:
    """A feature by the name of its column, where that has one."""
    kind, _, column = name.partition("/")
    names = trained.columns.get(kind, ())
    return f"{kind} {names[int(column)]}" if column and int(column) < len(names) else name


def monitor_to(out: Path, folder: Path | str, dataset: str, **options: object) -> Monitored:
    """Write a page of what ``monitor`` finds."""
    monitored = monitor(folder, dataset, **options)  # type: ignore[arg-type]
    columns, rows = monitored.table()
    roles = ["ours" if name in monitored.drifted else "" for name in monitored.drifts]
    verdict = f"Drift: {', '.join(describe_feature(monitored.trained, name) for name in monitored.drifted)}."
    blocks = [
        html.title(f"Drift of {Path(dataset).name}"),
        html.paragraph(f"{monitored.summary()}. {verdict if monitored.drifted else 'No feature has drifted.'}", "lead"),
        html.section("Features", [html.table(columns, rows, roles=roles), html.paragraph(EXPLANATION, "note")]),
        html.section("Shares of the graphs", [html.grid([_draw(monitored, name) for name in monitored.drifts])]),
        html.section("The farthest graphs", [html.table(["graph", "distance"], _rows(monitored))]),
    ]
    origin = monitored.trained.origin.get("dataset", "other graphs")
    write_text(out, str(html.page(f"Drift of {Path(dataset).name}", blocks, [f"{monitored.trained.name} on {origin}"])))
    return monitored


EXPLANATION = (
    "PSI is the population stability index: 0 where the shares of all bins are those of the training graphs. By chance "
    "it stays below the second number in 99 of 100 cases. Drift is a PSI above that and above 0.2. Distances are "
    "compared with those of the validation graphs; a distance above 1 is rare among these."
)


def _rows(monitored: Monitored) -> list[list[str]]:
    return [[name, f"{distance:.2f}"] for name, distance in monitored.farthest]


def _draw(monitored: Monitored, name: str) -> object:
    """A bar for each bin of a feature, and a ring at the share of the training graphs."""
    bins, counts, title = monitored.bins[name], monitored.counts[name], describe_feature(monitored.trained, name)
    expected = torch.tensor(bins.counts)
    shares = [(100 * each / each.sum()).tolist() for each in (counts, expected)]
    labels, colour = bins.describe(monitored.trained.vocabularies.get(name, ())), series_style(0).colour
    bars = [Bar(label, now, colour=colour, ring=then) for label, now, then in zip(labels, *shares, strict=True)]
    compared = "validation" if name == "distance" else "training"
    return html.figure(bar_chart(f"{title}: % of graphs; rings: {compared} graphs", bars))
