"""Explanations as one HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import FEATURES
from mnagt.data.registry import category_meanings
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.explain.attribution import DeletionCurve
from mnagt.explain.explanation import Explanation, check_by_deletion, explain
from mnagt.explain.kernel_statistics import KernelStatistics, NodeGroup, compute_kernel_statistics, node_type
from mnagt.explain.settings import ExplainConfig
from mnagt.files import write_text
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.inference.predict import select_graphs
from mnagt.reports.charts import Series, line_chart, stacked_bars
from mnagt.reports.graph_drawing import (
    NEGATIVE,
    POSITIVE,
    DrawnGraph,
    compute_opacities,
    draw_pies,
    draw_values,
    value_colour,
)
from mnagt.reports.page import heat_map, html
from mnagt.reports.picture import Key, kernel_keys
from mnagt.reports.theme import series_style
from mnagt.version import __version__

BONDS = ("single", "double", "triple", "aromatic", "other")
MAX_NODES, MAX_EDGES = 120, 400
"""Size up to which a graph is drawn."""
SHOWN_TYPES = 12
"""Kinds of nodes that are shown, the most common."""
SHOWN_NODES = 12
"""Nodes listed of a graph that is too large to be drawn."""


@dataclass(frozen=True, eq=False)
class Explained:
    """All that the page shows."""

    title: str
    trained: TrainedModel
    dataset: PackedDataset
    drawn: Sequence[Explanation]
    names: Sequence[str]
    silenced: DeletionCurve
    cut: DeletionCurve
    statistics: KernelStatistics | None


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
    """Write a page that explains the predictions for the graphs that ``predict`` would take; returns a summary.

    Attributions of the first graphs are checked by deletion; the kernels' weights are averaged over all.
    """
    trained, chosen_device = load_model(folder), pick_device(device)
    about = select_graphs(trained, dataset, graphs=graphs, smiles=smiles)
    if len(about.indices) == 0:
        raise InputError(f"{dataset}: no graph to explain")
    some = about.indices[: max(config.drawn, config.checked)]
    found = explain(trained, about.graphs, some, target=config.target, steps=config.steps, device=chosen_device)
    checked = found[: config.checked]
    silenced, cut = (
        check_by_deletion(trained, about.graphs, checked, is_cut=is_cut, orders=config.orders, device=chosen_device)
        for is_cut in (False, True)
    )
    statistics = compute_kernel_statistics(trained, about.graphs, about.indices, device=chosen_device)
    title = f"{trained.name} on {Path(dataset).name}"
    explained = Explained(title, trained, about.graphs, found[: config.drawn], about.names, silenced, cut, statistics)
    write_text(out, build_page(explained))
    return [
        f"graphs explained: {len(found)}, drawn: {min(config.drawn, len(found))}, in {out}",
        f"deletion: area ratio {silenced.ratio:.3f} with nodes silent, {cut.ratio:.3f} with nodes cut out, over "
        f"{silenced.graphs} of them; below 1 is better than a random order",
    ]


def build_page(explained: Explained) -> str:
    """The page: the check by deletion, a card for each graph, and kernel weights over all graphs."""
    layers = max((max(len(e.kernel_weights), len(e.attention)) for e in explained.drawn), default=0)
    kernels = max((e.kernel_weights[0].shape[1] for e in explained.drawn if e.kernel_weights), default=0)
    directions = [
        Key("speaks for the answer", POSITIVE, is_line=False),
        Key("speaks against it", NEGATIVE, is_line=False),
    ]
    cards = [_card(explained, each, name) for each, name in zip(explained.drawn, explained.names, strict=False)]
    blocks = [
        *_headline(explained),
        _check(explained),
        html.section(
            "Graph by graph",
            [
                html.paragraph(_how_to_read(kernels)),
                html.legend(directions),
                *([html.legend(kernel_keys(kernels))] if kernels else []),
                html.layer_choice(layers, [html.grid(cards, "stack"), *_kernel_statistics(explained.statistics)]),
            ],
        ),
    ]
    facts = explained.title, f"trained on {explained.trained.origin.get('dataset', 'graphs')}", f"mnagt {__version__}"
    return html.page(f"Explained: {explained.title}", blocks, facts, layers)


def _headline(explained: Explained) -> list[Markup]:
    tiles = [
        ("deletion, area ratio", f"{explained.silenced.ratio:.2f}", " (random: 1)"),
        ("with nodes cut out", f"{explained.cut.ratio:.2f}", " (random: 1)"),
        ("graphs checked", f"{explained.silenced.graphs}", ""),
    ]
    return [
        html.title(f"Why does {explained.title} say so?"),
        html.paragraph(
            "Which nodes an answer is due to, how nodes weighed the views that their attention kernels gave them, "
            "and whom they attended to.",
            "lead",
        ),
        html.tiles(tiles),
    ]


def _check(explained: Explained) -> Markup:
    curve = explained.silenced
    percents = [100 * i / len(curve.ordered) for i in range(len(curve.ordered))]
    series = [
        Series("weightiest first", series_style(0), percents, curve.ordered),
        Series("random order", series_style(1), percents, curve.chance),
    ]
    caption = f"What is left of the answer, mean of {curve.graphs} graphs"
    chart = line_chart(caption, series, x_label="nodes silenced, %", y_label="left", x_ticks=percents)
    return html.section(
        "Can the attributions be believed?",
        [
            html.paragraph(
                "Nodes are silenced, so that they bring nothing along: those first that speak most for the answer, or "
                "in random order. If attributions find what matters, the answer falls sooner than by chance, and the "
                "ratio of the areas under the two curves is below 1. Cutting nodes out of the graph, edges and all, is "
                "a harder test, and a muddled one: what is left is a graph of a kind that the model has hardly seen."
            ),
            html.figure(chart, role="wide"),
        ],
    )


def _how_to_read(kernels: int) -> str:
    text = (
        "Colours are integrated gradients: how far each node moves the answer from what the model would say if nodes "
        "brought nothing along. They add up to that difference. "
    )
    if not kernels:
        return text
    return text + (
        "Pies are the weights that a node gives to its attention kernels in one layer; kernel k compares nodes by what "
        "k steps see around them. They say how views were mixed, not which nodes made the model decide."
    )


def _card(explained: Explained, each: Explanation, name: str) -> Markup:
    found = each.attribution
    prediction = ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in each.prediction.items()
    )
    sums = (
        f"Explained: {each.output.name}. {found.answer:.2f} in {each.output.unit}, {found.baseline:.2f} if nodes "
        f"brought nothing along; the colours make up {found.nodes.sum():+.2f}, {abs(found.gap):.2f} are missed."
    )
    blocks = [
        *([html.paragraph(f"``{each.smiles}``")] if each.smiles else []),
        html.paragraph(prediction),
        html.paragraph(sums, "note"),
        _drawings(explained, each, name),
        *_attention(each),
    ]
    return html.card(name, blocks)


def _drawings(explained: Explained, each: Explanation, name: str) -> Markup:
    """The graph coloured by its attributions and, beside it, with the kernels' weights as pies."""
    values, weights = each.attribution.nodes.tolist(), [layer.tolist() for layer in each.kernel_weights]
    keys = kernel_keys(len(weights[0][0]) if weights and weights[0] else 0)
    names = _node_names(explained, each)
    if explained.trained.task.is_sequence and each.graph.node_labels is not None:
        depths = each.graph.node_labels[:, -1].tolist()
        rows = zip(names, depths, values, map(value_colour, values), compute_opacities(values), strict=True)
        nodes = [(*row, [layer[i] for layer in weights]) for i, row in enumerate(rows)]
        return html.tree(nodes, [key.colour for key in keys])
    graph = DrawnGraph(names, _bonds(explained, each), each.smiles)
    if len(values) > MAX_NODES or len(graph.bonds) > MAX_EDGES:
        return _largest(names, values)
    drawings = [draw_values(f"What the nodes of {name} speak for", graph, values)]
    if keys:
        drawings.append(draw_pies(f"How the nodes of {name} weigh their kernels", graph, weights, keys).to_svg())
    return html.grid(drawings)


def _node_names(explained: Explained, each: Explanation) -> list[str]:
    labels = each.graph.node_labels
    first = each.graph.in_degree if labels is None else labels[:, 0]
    kind = {label: node_type(explained.trained, explained.dataset, label) for label in first.unique().tolist()}
    names = [kind[label] for label in first.tolist()]
    if not explained.trained.task.is_sequence or labels is None:
        return names
    attributes = explained.trained.vocabularies.get("node_labels/1", ())
    second = [attributes[label] if label < len(attributes) else "" for label in labels[:, 1].tolist()]
    return [name if word == "__NONE__" else f"{name}  {word}" for name, word in zip(names, second, strict=True)]


def _bonds(explained: Explained, each: Explanation) -> list[tuple[int, int, str]]:
    """Each pair of connected nodes once, with the kind of bond as far as that is known."""
    labels = each.graph.edge_labels
    words = (
        BONDS if explained.trained.model.features == FEATURES else category_meanings(explained.dataset, "edge_labels/0")
    )
    kinds = [-1] * each.graph.num_edges if labels is None else labels[:, 0].tolist()
    ends = zip(each.graph.edge_index.T.tolist(), kinds, strict=True)
    found = {(min(i, j), max(i, j)): words[kind] if 0 <= kind < len(words) else "" for (i, j), kind in ends if i != j}
    return [(i, j, kind) for (i, j), kind in found.items()]


def _largest(names: Sequence[str], values: Sequence[float]) -> Markup:
    """The nodes with the largest attributions, for graphs too large to be drawn."""
    order = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:SHOWN_NODES]
    rows = [
        (f"{names[i]} (node {i})", html.mark(f"{values[i]:+.3f}", "raises" if values[i] > 0 else "lowers"))
        for i in order
    ]
    note = f"{len(values):,} nodes are too many to draw; these weigh most."
    return html.grid([html.paragraph(note, "note"), html.table([], rows)], "stack")


def _attention(each: Explanation) -> list[Markup]:
    """A map for each layer, kernel and head."""
    if not each.attention or each.attention[0].shape[-1] > MAX_NODES:
        return []
    layers = []
    for number, layer in enumerate(each.attention):
        maps, keys = [], kernel_keys(len(layer))
        for key, kernel in zip(keys, layer, strict=True):
            for h, head in enumerate(kernel):
                caption = f"{key.name if len(layer) > 1 else 'attention'}, head {h + 1}"
                maps.append(html.figure(heat_map(f"{caption}, layer {number + 1}", head.numpy()), caption))
        layers.append(html.grid(maps, "maps"))
    note = (
        "A row for each node that attends, a column for each that it attends to, in the graph's order; the strongest "
        "pair of a map in full colour."
    )
    return [html.details("Attention between nodes", [html.paragraph(note, "note"), html.layers(layers)])]


def _kernel_statistics(statistics: KernelStatistics | None) -> list[Markup]:
    if statistics is None:
        return []
    what = "class" if statistics.is_by_target else "predicted class"
    figures = [_bars("By kind of node, the most common first", statistics.by_type[:SHOWN_TYPES])]
    if statistics.by_class:
        figures.append(_bars(f"By {what} of the graph", statistics.by_class))
    text = f"Mean weights of the kernels over {statistics.graphs:,} graphs, in the layer chosen above."
    return [html.section("Over all graphs", [html.paragraph(text), html.grid(figures)])]


def _bars(caption: str, groups: Sequence[NodeGroup]) -> Markup:
    keys, pictures = kernel_keys(groups[0].weights.shape[1]), []
    for layer in range(len(groups[0].weights)):
        rows = [(_shorten(group.name), group.weights[layer].tolist()) for group in groups]
        pictures.append(stacked_bars(f"{caption}, layer {layer + 1}", rows, keys).to_svg())
    counts = ", ".join(f"{group.name}: {group.nodes:,}" for group in groups)
    return html.figure(html.layers(pictures), caption, note=f"Nodes: {counts}")


def _shorten(name: str) -> str:
    return name if len(name) <= 7 else name[:6] + "…"
