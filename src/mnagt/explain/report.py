"""Explanations as one HTML page that needs nothing from outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mnagt.data import meanings
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import FEATURES
from mnagt.errors import InputError
from mnagt.experiments.page import colour, dash, html_page, tile
from mnagt.experiments.quickstart_report import STYLE, kernel_name
from mnagt.experiments.structures import structure
from mnagt.experiments.svg import Curve, Markup, element, joined, legend, line_chart, ramp, stacked_bars
from mnagt.explain.attribution import DeletionCurve
from mnagt.explain.explanation import Explanation, checked_by_deletion, explain
from mnagt.explain.pictures import (
    AGAINST,
    FOR,
    LARGEST,
    MOST_EDGES,
    css,
    heat,
    is_readable,
    molecule,
    molecule_places,
    outline,
    tint,
    tinted,
)
from mnagt.explain.settings import ExplainConfig
from mnagt.explain.spread import Group, Spread, kernel_spread, node_type
from mnagt.files import write_text
from mnagt.tasks import SubTokens
from mnagt.training.answers import asked
from mnagt.training.devices import pick_device
from mnagt.training.model_folder import Trained, load_model
from mnagt.version import __version__

BONDS = ("single", "double", "triple", "aromatic", "other")
TYPES = 12
"""Kinds of nodes that are shown, the most common."""
WEIGHTIEST = 12
RULES = """
.paper { background: #fff; border-radius: 8px; } .structure .ink { fill: #111; font-size: 11px; font-weight: 650; }
.structure .node { stroke: var(--soft); } .cards { grid-template-columns: 1fr; } .card { overflow-x: auto; }
.outline { list-style: none; margin: 0; padding: 0; max-height: 32rem; overflow: auto; font-size: .85rem; }
.outline li { display: flex; gap: .4rem; align-items: center; padding-left: calc(var(--depth) * .9rem); }
.outline .bar { flex: none; width: 1.6rem; height: .95rem; border: 1px solid var(--line); border-radius: 3px; }
svg.dot { flex: none; width: 14px; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .8rem; margin: .6rem 0; }
.maps figure { padding: .5rem; border-radius: 8px; } svg.heat { background: var(--page); } summary { cursor: pointer; }
"""


@dataclass(frozen=True, eq=False)
class Explained:
    """All that the page shows."""

    title: str
    trained: Trained
    dataset: PackedDataset
    drawn: Sequence[Explanation]
    names: Sequence[str]
    silenced: DeletionCurve
    cut: DeletionCurve
    spread: Spread | None


def explain_to(
    out: Path,
    folder: Path | str,
    dataset: str,
    config: ExplainConfig,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    device: str = "auto",
) -> list[str]:
    """Write the page about what the model says of the graphs that ``predict`` would be about; what it found, in words.

    Attributions of the first graphs are checked; the weights of kernels are averaged over all.
    """
    trained, place = load_model(folder), pick_device(device)
    about = asked(trained, dataset, graphs=graphs, smiles=smiles)
    if len(about.indices) == 0:
        raise InputError(f"{dataset}: no graph to explain")
    some = about.indices[: max(config.drawn, config.checked)]
    found = explain(trained, about.graphs, some, target=config.target, steps=config.steps, device=place)
    checked = found[: config.checked]
    silenced, cut = (
        checked_by_deletion(trained, about.graphs, checked, is_cut=is_cut, orders=config.orders, device=place)
        for is_cut in (False, True)
    )
    spread = kernel_spread(trained, about.graphs, about.indices, device=place)
    title = f"{trained.name} on {Path(dataset).name}"
    write_text(
        out, page(Explained(title, trained, about.graphs, found[: config.drawn], about.names, silenced, cut, spread))
    )
    return [
        f"graphs explained: {len(found)}, drawn: {min(config.drawn, len(found))}, in {out}",
        f"deletion: area ratio {silenced.ratio:.3f} with nodes silent, {cut.ratio:.3f} with nodes cut out, over "
        f"{silenced.graphs} of them; below 1 is better than a random order",
    ]


def page(explained: Explained) -> str:
    layers = max((max(len(e.kernel_weights), len(e.attention)) for e in explained.drawn), default=0)
    chosen = "".join(f"#layer-{i}:checked ~ .explained .layer-{i} {{ display: inline; }}\n" for i in range(layers))
    choice = []
    for i in range(layers):
        choice.append(element("input", type="radio", name="layer", id=f"layer-{i}", checked=i == layers - 1))
        choice.append(element("label", f"layer {i + 1}", for_=f"layer-{i}"))
    body = element(
        "div",
        element("div", *(_card(explained, row) for row in range(len(explained.drawn))), class_="cards"),
        _spread(explained.spread) if explained.spread else "",
        class_="explained",
    )
    sections = [
        _headline(explained),
        _check(explained),
        element(
            "section",
            element("h2", "Graph by graph"),
            element("p", _how_to_read(explained)),
            legend([("speaks for the answer", css(_unit(FOR))), ("speaks against it", css(_unit(AGAINST)))]),
            _kernels_legend(explained),
            element("div", *choice, body, class_="chooser", role="group", aria_label="Layer that is shown"),
        ),
    ]
    facts = explained.title, f"trained on {explained.trained.origin.get('dataset', 'graphs')}", f"mnagt {__version__}"
    return html_page(f"Explained: {explained.title}", sections, facts, STYLE + RULES + chosen)


def _unit(channels: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = (channel / 255 for channel in channels)
    return red, green, blue


def _headline(explained: Explained) -> Markup:
    count = explained.silenced.graphs
    return joined(
        [
            element("h1", f"Why does {explained.title} say so?"),
            element(
                "p",
                "Which nodes an answer is due to, how nodes weighed the views that their attention kernels gave them, "
                "and whom they attended to.",
                class_="lead",
            ),
            element(
                "div",
                tile("deletion, area ratio", f"{explained.silenced.ratio:.2f}", " (random: 1)", is_first=True),
                tile("with nodes cut out", f"{explained.cut.ratio:.2f}", " (random: 1)"),
                tile("graphs checked", f"{count}", ""),
                class_="tiles",
            ),
        ]
    )


def _check(explained: Explained) -> Markup:
    tenths = [100 * i / len(explained.silenced.ordered) for i in range(len(explained.silenced.ordered))]
    title = "What is left of the answer"
    curves = [
        Curve(name, colour(i), values, values, values, dash(i), tenths)
        for i, (name, values) in enumerate(
            (("weightiest first", explained.silenced.ordered), ("random order", explained.silenced.chance))
        )
    ]
    return element(
        "section",
        element("h2", "Can the attributions be believed?"),
        element(
            "p",
            "Nodes are silenced, so that they bring nothing along: those first that speak most for the answer, or in "
            "random order. If attributions find what matters, the answer falls sooner than by chance, and the ratio of "
            "the areas under the two curves is below 1. Cutting nodes out of the graph, edges and all, is a harder "
            "test, and a muddled one: what is left is a graph of a kind that the model has hardly seen.",
        ),
        element(
            "figure",
            element("figcaption", f"{title}, mean of {explained.silenced.graphs} graphs"),
            line_chart(title, curves, x_label="nodes silenced, %", y_label="left", ticks=tenths),
            legend([(curve.name, curve.colour) for curve in curves], [curve.dash for curve in curves]),
            class_="wide",
        ),
    )


def _how_to_read(explained: Explained) -> str:
    said = (
        "Colours are integrated gradients: how far each node moves the answer from what the model would say if nodes "
        "brought nothing along. They add up to that difference. "
    )
    if not _kernels(explained):
        return said
    return said + (
        "Pies are the weights that a node gives to its attention kernels in one layer; kernel k compares nodes by what "
        "k steps see around them. They say how views were mixed, not which nodes made the model decide."
    )


def _kernels(explained: Explained) -> int:
    return max((e.kernel_weights[0].shape[1] for e in explained.drawn if e.kernel_weights), default=0)


def _kernels_legend(explained: Explained) -> Markup:
    kernels = _kernels(explained)
    return legend([(kernel_name(k), shade) for k, shade in enumerate(ramp(kernels))]) if kernels else Markup("")


def _card(explained: Explained, row: int) -> Markup:
    each, name = explained.drawn[row], explained.names[row]
    found = each.attribution
    said = ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in each.said.items()
    )
    sums = (
        f"Explained: {each.question.answer}. {found.answer:.2f} in {each.question.unit}, {found.baseline:.2f} if nodes "
        f"brought nothing along; the colours make up {found.nodes.sum():+.2f}, {abs(found.gap):.2f} are missed."
    )
    return element(
        "article",
        element("header", element("h3", name)),
        *([element("p", element("code", each.smiles))] if each.smiles else []),
        element("p", said),
        element("p", sums, class_="note"),
        _pictures(explained, each, name),
        _attention(each),
        class_="card",
    )


def _pictures(explained: Explained, each: Explanation, name: str) -> Markup:
    values, weights = each.attribution.nodes.tolist(), [layer.tolist() for layer in each.kernel_weights]
    kernels = len(weights[0][0]) if weights and weights[0] else 0
    words, shades = [kernel_name(k) for k in range(kernels)], ramp(kernels)
    names = _node_names(explained, each)
    if isinstance(explained.trained.task, SubTokens) and each.graph.node_labels is not None:
        return outline(names, each.graph.node_labels[:, -1].tolist(), values, weights, shades)
    bonds = _bonds(explained, each)
    if len(values) > LARGEST or len(bonds) > MOST_EDGES:
        return _weightiest(names, values)
    places, title = None, f"What the nodes of {name} speak for"
    if each.smiles is not None and is_readable(each.smiles, len(values)):
        places, first = molecule_places(each.smiles), molecule(title, each.smiles, values)
    else:
        first = tinted(title, names, bonds, values)
    second = structure(f"How the nodes of {name} weigh their kernels", names, bonds, weights, words, shades, places)
    return element("div", first, *([second] if kernels else []), class_="pair")


def _node_names(explained: Explained, each: Explanation) -> list[str]:
    labels = each.graph.node_labels
    first = each.graph.in_degree if labels is None else labels[:, 0]
    kind = {label: node_type(explained.trained, explained.dataset, label) for label in first.unique().tolist()}
    names = [kind[label] for label in first.tolist()]
    if not isinstance(explained.trained.task, SubTokens) or labels is None:
        return names
    attributes = explained.trained.vocabularies.get("node_labels/1", ())
    second = [attributes[label] if label < len(attributes) else "" for label in labels[:, 1].tolist()]
    return [name if word == "__NONE__" else f"{name}  {word}" for name, word in zip(names, second, strict=True)]


def _bonds(explained: Explained, each: Explanation) -> list[tuple[int, int, str]]:
    """Each pair of joined nodes once, and what kind of bond it is as far as that is known."""
    labels = each.graph.edge_labels
    words = BONDS if explained.trained.model.features == FEATURES else meanings(explained.dataset, "edge_labels/0")
    kinds = [-1] * each.graph.num_edges if labels is None else labels[:, 0].tolist()
    ends = zip(each.graph.edge_index.T.tolist(), kinds, strict=True)
    found = {(min(i, j), max(i, j)): words[kind] if 0 <= kind < len(words) else "" for (i, j), kind in ends if i != j}
    return [(i, j, kind) for (i, j), kind in found.items()]


def _weightiest(names: Sequence[str], values: Sequence[float]) -> Markup:
    """For graphs too large to be drawn."""
    most = max(map(abs, values), default=0.0)
    order = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:WEIGHTIEST]
    lines = [
        element(
            "tr",
            element("th", f"{names[i]} (node {i})", scope="row"),
            element(
                "td",
                f"{values[i]:+.3f}",
                class_="number",
                style=f"border-left:.5rem solid {css(tint(values[i], most))}",
            ),
        )
        for i in order
    ]
    note = f"{len(values):,} nodes are too many to draw; these weigh most."
    return joined([element("p", note, class_="note"), element("table", element("tbody", *lines))])


def _attention(each: Explanation) -> Markup:
    """A map for each layer, kernel and head."""
    if not each.attention or each.attention[0].shape[-1] > LARGEST:
        return Markup("")
    layers = []
    for number, layer in enumerate(each.attention):
        maps = []
        for k, kernel in enumerate(layer):
            for h, head in enumerate(kernel):
                title = f"{kernel_name(k) if len(layer) > 1 else 'attention'}, head {h + 1}"
                maps.append(
                    element("figure", element("figcaption", title), heat(f"{title}, layer {number + 1}", head.numpy()))
                )
        layers.append(element("div", element("div", *maps, class_="maps"), class_=f"layer layer-{number}"))
    summary = element("summary", "Attention between nodes")
    note = element(
        "p",
        "A row for each node that attends, a column for each that it attends to, in the graph's order; the strongest "
        "pair of a map in full colour.",
        class_="note",
    )
    return element("details", summary, note, *layers)


def _spread(spread: Spread) -> Markup:
    kernels = spread.by_type[0].weights.shape[1]
    what = "class" if spread.is_true else "class that the model says"
    figures = [_bars("By kind of node, the most common first", spread.by_type[:TYPES], kernels)]
    if spread.by_class:
        figures.append(_bars(f"By {what} of the graph", spread.by_class, kernels))
    return element(
        "section",
        element("h2", "Over all graphs"),
        element(
            "p",
            f"Mean weights of the kernels over {spread.graphs:,} graphs, in the layer chosen above.",
        ),
        element("div", *figures, class_="pair" if len(figures) > 1 else "wide"),
    )


def _bars(title: str, groups: Sequence[Group], kernels: int) -> Markup:
    names, shades = [kernel_name(k) for k in range(kernels)], ramp(kernels)
    pictures = []
    for layer in range(len(groups[0].weights)):
        rows = [(_short(group.name), group.weights[layer].tolist()) for group in groups]
        bars = stacked_bars(f"{title}, layer {layer + 1}", rows, names, shades)
        pictures.append(element("div", bars, class_=f"layer layer-{layer}"))
    counted = ", ".join(f"{group.name}: {group.nodes:,}" for group in groups)
    return element("figure", element("figcaption", title), *pictures, element("p", f"Nodes: {counted}", class_="note"))


def _short(name: str) -> str:
    return name if len(name) <= 7 else name[:6] + "…"
