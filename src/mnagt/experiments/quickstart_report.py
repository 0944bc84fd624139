"""The HTML report of the quickstart."""

from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import mean, stdev

from markupsafe import Markup

from mnagt.experiments.crossval import CrossValidation
from mnagt.experiments.quickstart import PUBLISHED, Evidence, Molecule
from mnagt.experiments.statistics import Paired
from mnagt.files import write_text
from mnagt.reports.charts import Series, confusion_matrix, dot_plot, line_chart, stacked_bars
from mnagt.reports.graph_drawing import DrawnGraph, draw_pies
from mnagt.reports.page import html
from mnagt.reports.picture import Key, kernel_keys
from mnagt.reports.theme import series_style
from mnagt.training.progress import clock
from mnagt.version import __version__


def write_report(path: Path, evidence: Evidence) -> None:
    """Write the page about ``evidence`` to ``path``."""
    write_text(path, build_page(evidence))


def build_page(evidence: Evidence) -> str:
    """The page: scores, comparison, learning curves, folds, confusion matrices and molecules."""
    sections = [
        *_headline(evidence),
        _comparison(evidence),
        _learning(evidence),
        _folds(evidence),
        _confusions(evidence),
        *([_molecules(evidence)] if evidence.molecules else []),
    ]
    facts = f"{evidence.dataset}, {evidence.graphs} graphs", clock(evidence.seconds), evidence.device
    layers = max((len(molecule.weights) for molecule in evidence.molecules), default=0)
    facts = (*facts, f"mnagt {__version__}")
    return html.page(f"mnagt on {evidence.dataset}", sections, facts, layers)


def _headline(evidence: Evidence) -> list[Markup]:
    count = len(evidence.models[0].folds)
    labels = Counter(label for fold in evidence.models[0].folds for label in fold.actual)
    label, most = labels.most_common(1)[0]
    tiles = [
        (f"{model.model}, accuracy", _percent(model.mean), f" ± {100 * model.deviation:.1f} %")
        for model in evidence.models
    ]
    majority = (f"always saying “{evidence.class_names[label]}”", _percent(most / labels.total()), " %")
    return [
        html.title(f"mnagt on {evidence.dataset}"),
        html.paragraph(
            f"{evidence.dataset} is a collection of {evidence.graphs} molecules, each known to cause mutations in "
            f"bacteria or not. In {count}-fold cross-validation, every molecule was judged once, by a model that "
            "had not seen it in training.",
            "lead",
        ),
        html.tiles([*tiles, majority]),
        html.paragraph("Mean over the folds ± standard deviation between them.", "note"),
    ]


def _comparison(evidence: Evidence) -> Markup:
    first, *others = evidence.models
    scores = [(m.model, m.mean, m.deviation, f"{m.parameters:,}", "validation fold") for m in evidence.models]
    published = [
        (f"{name}, published", score / 100, (deviation or 0) / 100, "–", "see note*")
        for name, score, deviation in PUBLISHED
    ]
    low = max(0.0, int(10 * min(score - deviation for _, score, deviation, *_ in scores + published)) / 10)
    rows = []
    for i, (name, score, deviation, parameters, chosen) in enumerate(scores + published):
        is_ours = i < len(scores)
        text = _percent(score) + (f" ± {100 * deviation:.1f} %" if deviation or is_ours else " %")
        sketch = html.interval(f"{name}: {text}", score, low, 1.0, deviation, is_ours=is_ours)
        rows.append([name, text, sketch, parameters, chosen])
    roles = ["ours"] * len(scores) + ["published"] * len(published)
    heads = ["model", "accuracy", (f"{100 * low:.0f} % to 100 %", "sketch"), ("parameters", "optional")]
    return html.section(
        "How it compares",
        [
            *(html.paragraph(compare(first, other)) for other in others),
            html.table([*heads, "epoch chosen on"], rows, roles),
            html.paragraph(
                "* Xu et al., How powerful are graph neural networks?, ICLR 2019, table 1. They kept no validation "
                "fold: the networks they trained are reported at the epoch that is best on the test folds, which "
                "flatters. Ours take the epoch with the best score on a separate validation fold, and so learn from "
                "fewer molecules.",
                "note",
            ),
        ],
    )


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


def _learning(evidence: Evidence) -> Markup:
    charts = []
    for key, caption, unit in (("loss", "Training loss", ""), ("valid_accuracy", "Validation accuracy", "%")):
        series = [_series(model, key, i, is_share=unit == "%") for i, model in enumerate(evidence.models)]
        charts.append(line_chart(f"{caption}, mean over the folds", series, x_label="epoch", y_label=unit))
    return html.section(
        "Learning",
        [
            html.paragraph("Each line is the mean over the folds, its band one standard deviation to either side."),
            html.legend(charts[0].keys),
            html.grid([html.figure(chart, has_keys=False) for chart in charts]),
        ],
    )


def _series(model: CrossValidation, key: str, number: int, *, is_share: bool) -> Series:
    """Mean and band over the folds; a band keeps within what its quantity can be."""
    scale, most = (100, 100) if is_share else (1, inf)
    histories = [[record[key] * scale for record in fold.history if key in record] for fold in model.folds]
    epochs = list(zip(*histories, strict=False))
    means, deviations = [mean(values) for values in epochs], [stdev(values) for values in epochs]
    low, high = ([min(most, max(0, m + side * s)) for m, s in zip(means, deviations, strict=True)] for side in (-1, 1))
    return Series(model.model, series_style(number), range(1, len(means) + 1), means, low, high)


def _folds(evidence: Evidence) -> Markup:
    columns = [str(i + 1) for i in range(len(evidence.models[0].folds))]
    series = [
        Series(m.model, series_style(i), range(len(columns)), [100 * fold.accuracy for fold in m.folds])
        for i, m in enumerate(evidence.models)
    ]
    size = round(mean(len(fold.actual) for fold in evidence.models[0].folds))
    chart = dot_plot("Test accuracy of each fold", columns, series, x_label="fold", y_label="%")
    return html.section(
        "Fold by fold",
        [
            html.paragraph(
                f"A fold tests about {size} molecules, so one molecule more or less moves its dot by "
                f"{100 / max(1, size):.1f} points. Lines across are the means."
            ),
            html.legend(chart.keys),
            html.figure(chart, has_keys=False, role="wide"),
        ],
    )


def _confusions(evidence: Evidence) -> Markup:
    names, figures = evidence.class_names, []
    for i, model in enumerate(evidence.models):
        pairs = Counter(p for fold in model.folds for p in zip(fold.actual, fold.predicted, strict=True))
        counts = [[pairs[a, p] for p in range(len(names))] for a in range(len(names))]
        right = sum(counts[c][c] for c in range(len(names)))
        caption = f"{model.model}: {right} of {pairs.total()} right"
        picture = confusion_matrix(f"Confusion matrix of {caption}", counts, names, series_style(i).colour)
        figures.append(html.figure(picture, caption, role="matrix"))
    return html.section(
        "What is taken for what",
        [
            html.paragraph(
                "All folds together. Percentages are shares of a row: of the molecules truly of that class."
            ),
            html.grid(figures),
        ],
    )


def _molecules(evidence: Evidence) -> Markup:
    molecules, layers = evidence.molecules, max(len(molecule.weights) for molecule in evidence.molecules)
    kernels = max((len(atom) for m in molecules for layer in m.weights for atom in layer), default=0)
    keys = kernel_keys(kernels)
    right = sum(m.predicted == m.actual for m in molecules)
    cards = html.grid([_card(molecule, keys) for molecule in molecules], "cards")
    explanation = [
        html.paragraph(
            "Each atom is a pie of the weights that it gives to its attention kernels in one layer: kernel k compares "
            "atoms by what k steps of message passing see around them, so a large slice of the last colour means that "
            "the atom listened mostly to atoms with like surroundings. The weights say how views were mixed, not which "
            "atoms made the model decide: they are not attributions."
        ),
        html.legend(keys),
        html.layer_choice(layers, [cards]),
        *_mean_weights(molecules, layers, keys),
    ]
    return html.section(
        "Molecules not seen in training",
        [
            html.paragraph(
                f"The saved model was trained on a split like those above; of the {len(molecules)} drawn here, "
                f"all from its test part, it gets {right} right. Carbon goes without a symbol; a dashed second line is "
                "an aromatic bond."
            ),
            *(explanation if layers else [cards]),
        ],
    )


def _card(molecule: Molecule, keys: Sequence[Key]) -> Markup:
    is_right = molecule.predicted == molecule.actual
    caption = f"Molecule {molecule.number}: {len(molecule.atoms)} atoms, {len(molecule.bonds)} bonds"
    probability = "over 99 %" if molecule.probability > 0.99 else f"{100 * molecule.probability:.0f} %"
    graph = DrawnGraph(molecule.atoms, molecule.bonds)
    blocks = [
        draw_pies(caption, graph, molecule.weights, keys).to_svg(),
        html.paragraph(f"says {molecule.predicted}, {probability}"),
        html.paragraph(f"is {molecule.actual}", "note"),
    ]
    return html.card(f"Molecule {molecule.number}", blocks, "✓ right" if is_right else "✗ wrong", is_good=is_right)


def _mean_weights(molecules: Sequence[Molecule], layers: int, keys: Sequence[Key]) -> list[Markup]:
    rows = []
    for i in range(layers):
        atoms = [atom for m in molecules for atom in m.weights[i]]
        rows.append((f"layer {i + 1}", [mean(shares) for shares in zip(*atoms, strict=True)]))
    chart = stacked_bars("Mean weight of each kernel over the atoms drawn above", rows, keys)
    return [html.heading("By layer"), html.figure(chart, role="wide")]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
