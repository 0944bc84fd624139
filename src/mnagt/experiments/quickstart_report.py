"""What the quickstart found, as one HTML page that needs nothing from outside."""

from collections import Counter
from collections.abc import Sequence
from math import inf, sqrt
from pathlib import Path
from statistics import mean, stdev

from mnagt.experiments.crossval import CrossValidation
from mnagt.experiments.page import colour, dash, html_page, tile
from mnagt.experiments.quickstart import PUBLISHED, Evidence, Molecule
from mnagt.experiments.structures import structure
from mnagt.experiments.svg import (
    Curve,
    Dots,
    Markup,
    confusion_matrix,
    dot_plot,
    element,
    interval,
    joined,
    legend,
    line_chart,
    percent,
    ramp,
    stacked_bars,
)
from mnagt.files import write_text
from mnagt.training.progress import clock
from mnagt.version import __version__

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t, 95 %, two-sided, for 2 folds, 3 folds, ...; from 10 folds on the last, which is a little strict."""

STYLE = """
.matrix svg { max-width: 24rem; margin: 0 auto; }
.structure { aspect-ratio: 4 / 3; } .structure .bonds line { stroke: var(--soft); stroke-width: 1.8; }
.structure .atom { fill: var(--card); } .structure .symbol { font-size: 11px; font-weight: 650; pointer-events: none; }
.card header { display: flex; justify-content: space-between; align-items: baseline; gap: .5rem; }
.card p { margin: .2rem 0 0; font-size: .9rem; line-height: 1.45; }
.verdict { font-size: .8rem; font-weight: 650; border: 1px solid; border-radius: 99px; padding: 0 .6rem;
  white-space: nowrap; }
.right { color: var(--good); } .wrong { color: var(--bad); }
.chooser { position: relative; } .chooser > input { position: absolute; opacity: 0; }
.chooser > label { display: inline-block; border: 1px solid var(--line); border-radius: 99px; padding: .15rem .9rem;
  margin: 0 .35rem .35rem 0; cursor: pointer; font-size: .9rem; background: var(--card); }
.chooser > input:checked + label { background: var(--ink); color: var(--page); border-color: var(--ink); }
.chooser > input:focus-visible + label { outline: 3px solid var(--model-0); outline-offset: 2px; }
.layer { display: none; }
"""


def write_report(path: Path, evidence: Evidence) -> None:
    """Write the page about ``evidence`` to ``path``."""
    write_text(path, page(evidence))


def page(evidence: Evidence) -> str:
    layers = max((len(molecule.weights) for molecule in evidence.molecules), default=0)
    chosen = "".join(f"#layer-{i}:checked ~ .cards .layer-{i} {{ display: inline; }}\n" for i in range(layers))
    sections = [
        _headline(evidence),
        _comparison(evidence),
        _learning(evidence),
        _folds(evidence),
        _confusions(evidence),
        _molecules(evidence, layers) if evidence.molecules else "",
    ]
    facts = f"{evidence.dataset}, {evidence.graphs} graphs", clock(evidence.seconds), evidence.device
    return html_page(f"mnagt on {evidence.dataset}", sections, (*facts, f"mnagt {__version__}"), STYLE + chosen)


def _headline(evidence: Evidence) -> Markup:
    count = len(evidence.models[0].folds)
    truth = Counter(label for fold in evidence.models[0].folds for label in fold.actual)
    label, most = truth.most_common(1)[0]
    tiles = [
        tile(f"{model.model}, accuracy", _score(model.mean), f" ± {100 * model.deviation:.1f} %", is_first=i == 0)
        for i, model in enumerate(evidence.models)
    ]
    majority = f"always saying “{evidence.class_names[label]}”"
    return joined(
        [
            element("h1", f"mnagt on {evidence.dataset}"),
            element(
                "p",
                f"{evidence.dataset} is a collection of {evidence.graphs} molecules, each known to cause mutations in "
                f"bacteria or not. In {count}-fold cross-validation, every molecule was judged once, by a model that "
                "had not seen it in training.",
                class_="lead",
            ),
            element("div", *tiles, tile(majority, _score(most / truth.total()), " %"), class_="tiles"),
            element("p", "Mean over the folds ± standard deviation between them.", class_="note"),
        ]
    )


def _comparison(evidence: Evidence) -> Markup:
    ours, *others = evidence.models
    rows = [(m.model, m.mean, m.deviation, f"{m.parameters:,}", "validation fold") for m in evidence.models]
    known = [(name, score / 100, dev and dev / 100, "–", "see note*") for name, score, dev in PUBLISHED]
    least = min(score - (deviation or 0) for _, score, deviation, *_ in rows + known)
    axis = (max(0.0, int(least * 10) / 10), 1.0)
    head = [element("th", name, scope="col") for name in ("model", "accuracy")]
    head.append(element("th", f"{percent(axis[0])} to 100 %", scope="col", class_="sketch"))
    head.append(element("th", "parameters", scope="col", class_="optional"))
    head.append(element("th", "epoch chosen on", scope="col"))
    lines = []
    for i, (name, score, deviation, parameters, chosen) in enumerate(rows + known):
        is_ours = i < len(rows)
        said = _score(score) + (" %" if deviation is None else f" ± {100 * deviation:.1f} %")
        sketch = interval(f"{name}: {said}", score, deviation, axis, colour(i) if is_ours else "var(--soft)")
        lines.append(
            element(
                "tr",
                element("th", name if is_ours else f"{name}, published", scope="row"),
                element("td", said, class_="number"),
                element("td", sketch, class_="sketch"),
                element("td", parameters, class_="optional"),
                element("td", chosen),
                class_="ours" if is_ours else "published",
            )
        )
    return element(
        "section",
        element("h2", "How it compares"),
        *(element("p", verdict(ours, other)) for other in others),
        element("table", element("thead", element("tr", *head)), element("tbody", *lines)),
        element(
            "p",
            "* Xu et al., How powerful are graph neural networks?, ICLR 2019, table 1. They kept no validation fold: "
            "the networks they trained are reported at the epoch that is best on the test folds, which flatters. Ours "
            "take the epoch that a separate validation fold likes best, and so learn from fewer molecules.",
            class_="note",
        ),
    )


def verdict(ours: CrossValidation, other: CrossValidation) -> str:
    """Which of two is higher, and whether that is more than chance between folds would give."""
    gaps = [a.accuracy - b.accuracy for a, b in zip(ours.folds, other.folds, strict=True)]
    gap, error = mean(gaps), stdev(gaps) / sqrt(len(gaps))
    if abs(gap) < 5e-4:
        return f"{ours.model} and {other.model} reach the same mean accuracy."
    high, low = (ours, other) if gap > 0 else (other, ours)
    bound = T95[min(len(gaps) - 2, len(T95) - 1)] * error
    text = f"{high.model} is higher than {low.model}, by {100 * abs(gap):.1f} points; the standard error of that "
    text += f"difference, fold by fold, is {100 * error:.1f}. "
    if abs(gap) <= error:
        return text + "So it is well within noise: on these molecules the two cannot be told apart."
    if abs(gap) <= bound:
        return text + f"With {len(gaps)} folds that is within noise: it hints at a difference and does not show one."
    return text + "That is more than noise between folds explains, though folds share molecules in training."


def _learning(evidence: Evidence) -> Markup:
    def chart(key: str, title: str, unit: str) -> Markup:
        curves = [_curve(model, key, i, is_share=unit == "%") for i, model in enumerate(evidence.models)]
        title = f"{title}, mean over the folds"
        return element(
            "figure",
            element("figcaption", title),
            line_chart(title, curves, x_label="epoch", y_label=unit),
        )

    charts = chart("loss", "Training loss", ""), chart("valid_accuracy", "Validation accuracy", "%")
    return element(
        "section",
        element("h2", "Learning"),
        element("p", "Each line is the mean over the folds, its band one standard deviation to either side."),
        _models_legend(evidence),
        element("div", *charts, class_="pair"),
    )


def _curve(model: CrossValidation, key: str, number: int, *, is_share: bool) -> Curve:
    """Mean and band over the folds; a band keeps within what its quantity can be."""
    scale, most = (100, 100) if is_share else (1, inf)
    histories = [[record[key] * scale for record in fold.history if key in record] for fold in model.folds]
    epochs = list(zip(*histories, strict=False))
    middle, spread = [mean(values) for values in epochs], [stdev(values) for values in epochs]
    low, high = ([min(most, max(0, m + side * s)) for m, s in zip(middle, spread, strict=True)] for side in (-1, 1))
    return Curve(model.model, colour(number), middle, low, high, dash(number))


def _folds(evidence: Evidence) -> Markup:
    rows = [
        Dots(m.model, colour(i), [100 * fold.accuracy for fold in m.folds], 100 * m.mean, dash(i))
        for i, m in enumerate(evidence.models)
    ]
    size = round(mean(len(fold.actual) for fold in evidence.models[0].folds))
    columns = [str(i + 1) for i in range(len(rows[0].values))]
    title = "Test accuracy of each fold"
    return element(
        "section",
        element("h2", "Fold by fold"),
        element(
            "p",
            f"A fold tests about {size} molecules, so one molecule more or less moves its dot by "
            f"{100 / max(1, size):.1f} points. Lines across are the means.",
        ),
        _models_legend(evidence),
        element(
            "figure",
            element("figcaption", title),
            dot_plot(title, columns, rows, x_label="fold", y_label="%", show="{:.3g}".format),
            class_="wide",
        ),
    )


def _confusions(evidence: Evidence) -> Markup:
    names, figures = evidence.class_names, []
    for i, model in enumerate(evidence.models):
        pairs = Counter(p for fold in model.folds for p in zip(fold.actual, fold.predicted, strict=True))
        counts = [[pairs[a, p] for p in range(len(names))] for a in range(len(names))]
        right = sum(counts[c][c] for c in range(len(names)))
        caption = f"{model.model}: {right} of {pairs.total()} right"
        picture = confusion_matrix(f"Confusion matrix of {caption}", counts, names, colour(i))
        figures.append(element("figure", element("figcaption", caption), picture, class_="matrix"))
    return element(
        "section",
        element("h2", "What is taken for what"),
        element("p", "All folds together. Percentages are shares of a row: of the molecules truly of that class."),
        element("div", *figures, class_="pair"),
    )


def _molecules(evidence: Evidence, layers: int) -> Markup:
    kernels = max((len(atom) for m in evidence.molecules for layer in m.weights for atom in layer), default=0)
    names, colours = [kernel_name(k) for k in range(kernels)], ramp(kernels)
    right = sum(m.predicted == m.actual for m in evidence.molecules)
    choice = []
    for i in range(layers):
        choice.append(element("input", type="radio", name="layer", id=f"layer-{i}", checked=i == layers - 1))
        choice.append(element("label", f"layer {i + 1}", for_=f"layer-{i}"))
    cards = element("div", *(_card(m, names, colours) for m in evidence.molecules), class_="cards")
    explained = [
        element(
            "p",
            "Each atom is a pie of the weights that it gives to its attention kernels in one layer: kernel k compares "
            "atoms by what k steps of message passing see around them, so a large slice of the last colour means that "
            "the atom listened mostly to atoms with like surroundings. The weights say how views were mixed, not which "
            "atoms made the model decide: they are not attributions.",
        ),
        legend(zip(names, colours, strict=True)),
        element("div", *choice, cards, class_="chooser", role="group", aria_label="Layer whose weights are drawn"),
        _mean_weights(evidence.molecules, layers, names, colours),
    ]
    return element(
        "section",
        element("h2", "Molecules not seen in training"),
        element(
            "p",
            f"The saved model was trained on a split like those above; of the {len(evidence.molecules)} drawn here, "
            f"all from its test part, it gets {right} right. Carbon goes without a symbol; a dashed second line is an "
            "aromatic bond.",
        ),
        *(explained if layers else [cards]),
    )


def kernel_name(k: int) -> str:
    """What kernel ``k`` sees."""
    return "itself" if k == 0 else f"{k} step{'s' if k > 1 else ''} away"


def _card(molecule: Molecule, names: Sequence[str], colours: Sequence[str]) -> Markup:
    is_right = molecule.predicted == molecule.actual
    title = f"Molecule {molecule.number}: {len(molecule.atoms)} atoms, {len(molecule.bonds)} bonds"
    sure = "over 99 %" if molecule.probability > 0.99 else percent(molecule.probability)
    said = f"says {molecule.predicted}, {sure}"
    badge = element("span", "✓ right" if is_right else "✗ wrong", class_=f"verdict {'right' if is_right else 'wrong'}")
    return element(
        "article",
        element("header", element("h3", f"Molecule {molecule.number}"), badge),
        structure(title, molecule.atoms, molecule.bonds, molecule.weights, names, colours),
        element("p", said),
        element("p", f"is {molecule.actual}", class_="note"),
        class_="card",
    )


def _mean_weights(molecules: Sequence[Molecule], layers: int, names: Sequence[str], colours: Sequence[str]) -> Markup:
    rows = []
    for i in range(layers):
        atoms = [atom for m in molecules for atom in m.weights[i]]
        rows.append((f"layer {i + 1}", [mean(shares) for shares in zip(*atoms, strict=True)]))
    title = "Mean weight of each kernel over the atoms drawn above"
    return joined(
        [
            element("h3", "By layer", style="margin-top:1.6rem"),
            element(
                "figure",
                element("figcaption", title),
                stacked_bars(title, rows, names, colours),
                legend(zip(names, colours, strict=True)),
                class_="wide",
            ),
        ]
    )


def _models_legend(evidence: Evidence) -> Markup:
    entries = [(model.model, colour(i)) for i, model in enumerate(evidence.models)]
    return legend(entries, [dash(i) for i in range(len(entries))])


def _score(share: float) -> str:
    return f"{100 * share:.1f}"
