"""The HTML report of the quickstart."""

from collections import Counter
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from mnagt.experiments.crossval import CrossValidation
from mnagt.experiments.statistics import Paired
from mnagt.files import write_text
from mnagt.reports.charts import Series, confusion_matrix, dot_plot, line_chart, mean_series, stacked_bars
from mnagt.reports.graph_drawing import DrawnGraph, draw_pies
from mnagt.reports.page import html, render_page
from mnagt.reports.picture import Picture, kernel_keys
from mnagt.reports.theme import series_style
from mnagt.training.progress import clock

PUBLISHED = (
    ("GIN-0", 89.4, 5.6),
    ("WL subtree kernel", 90.4, 5.7),
    ("DGCNN (SortPool)", 85.8, None),
    ("GCN (mean, 1 layer)", 85.6, 5.8),
    ("GraphSAGE (max, 1 layer)", 85.1, 7.6),
)
"""Xu et al. 2019, Table 1: name, accuracy, deviation. Their folds have no validation part: the epoch was chosen on the
test folds' mean curve, which flatters."""


@dataclass(frozen=True)
class Molecule:
    """A molecule that the model did not see in training, its prediction, and the kernel weights of its atoms."""

    number: int
    """Its index in the data set."""
    atoms: list[str]
    bonds: list[tuple[int, int, str]]
    """Atom, atom, kind of bond."""
    actual: str
    predicted: str
    probability: float
    """Of the predicted class."""
    weights: list[list[list[float]]]
    """For each layer and atom, the weight of each kernel; they add up to 1."""


@dataclass(frozen=True)
class Evidence:
    """All that the report shows."""

    dataset: str
    graphs: int
    class_names: tuple[str, ...]
    models: tuple[CrossValidation, ...]
    """Ours first."""
    molecules: list[Molecule]
    seconds: float
    """The whole of it, from the wall clock."""
    device: str


def write_report(path: Path, evidence: Evidence) -> None:
    """Write the page about ``evidence`` to ``path``."""
    write_text(path, build_page(evidence))


def build_page(evidence: Evidence) -> str:
    """The page: scores, comparison, learning curves, folds, confusion matrices and molecules."""
    models, (first, *others) = evidence.models, evidence.models
    labels = Counter(label for fold in first.folds for label in fold.actual)
    (majority, count), *_ = labels.most_common(1)
    tiles = [(f"{m.model}, accuracy", f"{100 * m.mean:.1f}", f" ± {100 * m.deviation:.1f} %") for m in models]
    tiles.append((f"always saying “{evidence.class_names[majority]}”", f"{100 * count / labels.total():.1f}", " %"))
    low, rows = _build_rows(models)
    return render_page(
        "experiments/quickstart.html",
        evidence=evidence,
        tiles=tiles,
        comparisons=[compare(first, other) for other in others],
        low=low,
        rows=rows,
        losses=_draw_learning(models, "loss", "Training loss", 1, inf),
        accuracies=_draw_learning(models, "valid_accuracy", "Validation accuracy", 100, 100),
        fold_size=round(mean(len(fold.actual) for fold in first.folds)),
        folds=_draw_folds(models),
        confusions=[_draw_confusions(model, i, evidence.class_names) for i, model in enumerate(models)],
        right=sum(molecule.predicted == molecule.actual for molecule in evidence.molecules),
        duration=clock(evidence.seconds),
        **_draw_molecules(evidence.molecules),
    )


def _build_rows(models: tuple[CrossValidation, ...]) -> tuple[float, list[list[str]]]:
    """Rows of our models and of published ones, with accuracies drawn on an axis from some tenth to 1; its low end."""
    scores = [(m.model, m.mean, m.deviation, f"{m.parameters:,}", "validation fold") for m in models]
    scores += [(f"{name}, published", m / 100, (s or 0) / 100, "–", "see note*") for name, m, s in PUBLISHED]
    low = max(0.0, int(10 * min(score - deviation for _, score, deviation, *_ in scores)) / 10)
    rows = []
    for i, (name, score, deviation, parameters, chosen_on) in enumerate(scores):
        text = (
            f"{100 * score:.1f} ± {100 * deviation:.1f} %" if deviation or i < len(models) else f"{100 * score:.1f} %"
        )
        sketch = html.interval(f"{name}: {text}", score, low, 1.0, deviation, is_ours=i < len(models))
        rows.append([name, text, sketch, parameters, chosen_on])
    return low, rows


def compare(ours: CrossValidation, other: CrossValidation) -> str:
    """Which of two is higher, and whether Wilcoxon's signed-rank test over the folds shows it."""
    pair = Paired(tuple(a.accuracy - b.accuracy for a, b in zip(ours.folds, other.folds, strict=True)))
    if abs(pair.mean) < 5e-4:
        return f"{ours.model} and {other.model} reach the same mean accuracy."
    high, low = (ours, other) if pair.mean > 0 else (other, ours)
    text = (
        f"{high.model} is higher than {low.model}, by {100 * abs(pair.mean):.1f} points (standard error over the folds "
        f"{100 * pair.error:.1f}; Wilcoxon's signed-rank test p = {pair.p:.2g}). "
    )
    if pair.p >= 0.05:
        return text + f"With {len(pair.gaps)} folds that does not show a difference."
    return text + "That shows a difference, though folds share molecules in training."


def _draw_learning(models: tuple[CrossValidation, ...], key: str, caption: str, unit: float, highest: float) -> Picture:
    series = []
    for i, model in enumerate(models):
        histories = [[record[key] * unit for record in fold.history if key in record] for fold in model.folds]
        epochs = list(zip(*histories, strict=False))
        series.append(mean_series(model.model, i, range(1, len(epochs) + 1), epochs, within=(0, highest)))
    y_label = "%" if unit == 100 else ""
    return line_chart(f"{caption}, mean over the folds", series, x_label="epoch", y_label=y_label)


def _draw_folds(models: tuple[CrossValidation, ...]) -> Picture:
    columns = [str(i + 1) for i in range(len(models[0].folds))]
    series = [
        Series(m.model, series_style(i), range(len(columns)), [100 * fold.accuracy for fold in m.folds])
        for i, m in enumerate(models)
    ]
    return dot_plot("Test accuracy of each fold", columns, series, x_label="fold", y_label="%")


def _draw_confusions(model: CrossValidation, number: int, names: tuple[str, ...]) -> tuple[str, Picture]:
    """A caption, and the counts of all folds together."""
    pairs = Counter(pair for fold in model.folds for pair in zip(fold.actual, fold.predicted, strict=True))
    counts = [[pairs[actual, predicted] for predicted in range(len(names))] for actual in range(len(names))]
    right = sum(counts[c][c] for c in range(len(names)))
    caption = f"{model.model}: {right} of {pairs.total()} right"
    return caption, confusion_matrix(f"Confusion matrix of {caption}", counts, names, series_style(number).colour)


def _draw_molecules(molecules: list[Molecule]) -> dict[str, Any]:
    """Molecules with their pictures, and the mean weights of each layer where there are any."""
    layers = max((len(molecule.weights) for molecule in molecules), default=0)
    keys = kernel_keys(max((len(atom) for m in molecules for layer in m.weights for atom in layer), default=0))
    pictures = [
        draw_pies(
            f"Molecule {m.number}: {len(m.atoms)} atoms, {len(m.bonds)} bonds",
            DrawnGraph(m.atoms, m.bonds),
            m.weights,
            keys,
        )
        for m in molecules
    ]
    rows = []
    for i in range(layers):
        atoms = [atom for molecule in molecules for atom in molecule.weights[i]]
        rows.append((f"layer {i + 1}", [mean(shares) for shares in zip(*atoms, strict=True)]))
    weights = stacked_bars("Mean weight of each kernel over the atoms drawn above", rows, keys)
    drawn = list(zip(molecules, pictures, strict=True))
    return {"molecules": drawn, "layers": layers, "kernels": keys, "mean_weights": weights}
