"""Explanations as one HTML page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import category_meanings
from mnagt.devices import pick_device
from mnagt.errors import InputError, count, join_names
from mnagt.explain.attribution import DeletionCurve
from mnagt.explain.config import ExplainConfig
from mnagt.explain.explanation import Explanation, check_by_deletion, explain
from mnagt.explain.kernel_statistics import NodeGroup, compute_kernel_statistics, node_type
from mnagt.files import write_text
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.molecules import CHANGES, REACTIONS, find_molecule_format
from mnagt.inference.ensemble import load_models
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.predict import select_graphs
from mnagt.nn.joined_model import JoinedModel
from mnagt.reports.charts import Series, line_chart, shorten, stacked_bars
from mnagt.reports.graph_drawing import (
    NEGATIVE,
    POSITIVE,
    DrawnGraph,
    compute_opacities,
    draw_pies,
    draw_values,
    list_bonds,
    value_colour,
)
from mnagt.reports.page import heat_map, html, render_page
from mnagt.reports.picture import Key, Picture, kernel_keys
from mnagt.reports.theme import series_style

BONDS = ("single", "double", "triple", "aromatic", "other")
MAX_NODES, MAX_EDGES = 120, 400
"""Size up to which a graph is drawn."""
SHOWN_TYPES = 12
"""Kinds of nodes that are shown, the most common."""
SHOWN_NODES = 12
"""Nodes listed of a graph that is too large to be drawn."""
DIRECTIONS = (Key("raises the explained output", POSITIVE, is_line=False), Key("lowers it", NEGATIVE, is_line=False))


def explain_to(
    out: Path,
    folder: Path | str,
    dataset: str,
    config: ExplainConfig,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    descriptors: str | None = None,
    device: str = "auto",
) -> list[str]:
    """Write a page that explains the predictions for the graphs that ``predict`` would take; returns a summary.

    Attributions of the first graphs are checked by deletion; the kernels' weights are averaged over all.
    """
    trained, chosen_device = load_models([folder], device=device), pick_device(device)
    about = select_graphs(trained, dataset, graphs=graphs, smiles=smiles, descriptors=descriptors)
    if len(about.indices) == 0:
        raise InputError(f"{dataset}: no graph to explain")
    some = about.indices[: max(config.drawn, config.checked)]
    explanations = explain(trained, about.graphs, some, target=config.target, steps=config.steps, device=chosen_device)
    drawn, checked = explanations[: config.drawn], explanations[: config.checked]
    zeroed, removed = (
        check_by_deletion(trained, about.graphs, checked, is_cut=is_cut, orders=config.orders, device=chosen_device)
        for is_cut in (False, True)
    )
    statistics = compute_kernel_statistics(trained, about.graphs, about.indices, device=chosen_device)
    groups = []
    if statistics is not None:
        what = "class" if statistics.is_by_target else "predicted class"
        groups.append(_draw_groups("By kind of node, the most common first", statistics.by_type[:SHOWN_TYPES]))
        groups += [_draw_groups(f"By {what} of the graph", statistics.by_class)] if statistics.by_class else []
    weight = trained.settings.get("forest_weight") if trained.forest is not None else None
    described = trained.settings.get("descriptors", ())
    page = render_page(
        "explain/explain.html",
        forest_weight=weight,
        are_reactions=trained.model.features == REACTIONS,
        descriptors=join_names(described) if described else "",
        members=_describe_members(trained),
        title=f"{trained.name} on {Path(dataset).name}",
        origin=trained.origin.get("dataset", "graphs"),
        zeroed=zeroed,
        removed=removed,
        deletion=_draw_deletion(zeroed),
        directions=DIRECTIONS,
        layers=max(max(len(each.kernel_weights), len(each.attention)) for each in drawn),
        kernels=_kernel_keys(drawn[0]),
        graphs=[_show_graph(trained, about.graphs, *pair) for pair in zip(drawn, about.names, strict=False)],
        statistics=statistics,
        groups=groups,
    )
    write_text(out, page)
    lines = [f"{count(len(explanations), 'graph')} explained, {len(drawn)} of them drawn in {out}"]
    lines.append(f"deletion check: the colours are {zeroed.verdict}")
    if zeroed.interval is not None:
        ratios = f"{_describe_ratio(zeroed)} with nodes set to zero, {_describe_ratio(removed)} with nodes removed"
        lines.append(f"area ratio of {zeroed.graphs} graphs (below 1 is better than chance): {ratios}")
    return lines + _list_apart(trained, explanations, bool(described))


def _list_apart(trained: TrainedModel, explanations: Sequence[Explanation], has_descriptors: bool) -> list[str]:
    """What is part of predictions and not of the colours."""
    is_mean = isinstance(trained.model, JoinedModel) and trained.model.is_mean
    apart = ["the random forest"] * (trained.forest is not None) + ["the mean of the models of trees"] * is_mean
    apart += ["what descriptors contribute"] * has_descriptors
    lines = [f"{what} is part of the prediction and not of the colours" for what in apart]
    if is_mean and not any(each.attribution.nodes.any() for each in explanations):
        lines.append(
            "all colours are zero: the network has no weight here; `mnagt train --model mnagt` trains one alone"
        )
    return lines


def _describe_members(trained: TrainedModel) -> str:
    """The members of a weighted mean with their weights; '' for other models."""
    if not (isinstance(trained.model, JoinedModel) and trained.model.is_mean):
        return ""
    pairs = zip(trained.model.members, trained.model.weights.tolist(), strict=True)
    return join_names(f"{name} ({weight:.1f})" for name, weight in pairs)


def _describe_ratio(curve: DeletionCurve) -> str:
    """The ratio with its interval."""
    return f"{curve.ratio:.3f}" + ("" if curve.interval is None else " ({:.3f} to {:.3f})".format(*curve.interval))


def _draw_deletion(curve: DeletionCurve) -> Picture:
    percents = [100 * i / len(curve.ordered) for i in range(len(curve.ordered))]
    series = [
        Series("largest attribution first", series_style(0), percents, curve.ordered),
        Series("random order", series_style(1), percents, curve.chance),
    ]
    caption = f"What is left of the prediction, mean of {curve.graphs} graphs"
    return line_chart(caption, series, x_label="nodes set to zero, %", y_label="left", x_ticks=percents)


def _kernel_keys(explanation: Explanation) -> list[Key]:
    return kernel_keys(explanation.kernel_weights[0].shape[1] if explanation.kernel_weights else 0)


def _show_graph(trained: TrainedModel, dataset: PackedDataset, explanation: Explanation, name: str) -> dict[str, Any]:
    """What the page shows of one graph: a tree, drawings, or the largest attributions of a large graph."""
    prediction = ", ".join(
        f"{key} {v:.3g}" if isinstance(v, float) else f"{key} {v}" for key, v in explanation.prediction.items()
    )
    shown = {"name": name, "explanation": explanation, "prediction": prediction}
    shown["attention"] = _draw_attention(explanation)
    values, weights = explanation.attribution.nodes.tolist(), [layer.tolist() for layer in explanation.kernel_weights]
    names = _node_names(trained, dataset, explanation)
    if trained.task.is_sequence and explanation.graph.node_labels is not None:
        depths = explanation.graph.node_labels[:, -1].tolist()
        rows = zip(names, depths, values, map(value_colour, values), compute_opacities(values), strict=True)
        return shown | {"tree": [(*row, [layer[i] for layer in weights]) for i, row in enumerate(rows)]}
    row_format = find_molecule_format(trained.model.features)
    kinds = (*BONDS, *CHANGES[1:3]) if row_format else category_meanings(dataset, "edge_labels/0")
    drawn = _name_changes(explanation.graph) if row_format and row_format.is_reaction else explanation.graph
    graph = DrawnGraph(names, list_bonds(drawn, kinds), explanation.smiles)
    if len(values) > MAX_NODES or len(graph.bonds) > MAX_EDGES:
        order = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:SHOWN_NODES]
        return shown | {"largest": [(f"{names[i]} (node {i})", values[i]) for i in order]}
    shown["drawing"] = draw_values(f"Attributions of the nodes of {name}", graph, values)
    if keys := _kernel_keys(explanation):
        shown["pies"] = draw_pies(f"Kernel weights of the nodes of {name}", graph, weights, keys).to_svg()
    return shown


def _name_changes(reaction: GraphBatch) -> GraphBatch:
    """The graph of a reaction whose bonds have their type in the first column, or that they are broken or formed."""
    assert reaction.edge_labels is not None
    kind, change = reaction.edge_labels[:, 0].long(), reaction.edge_labels[:, -1].long()
    kind = torch.where((change == 1) | (change == 2), len(BONDS) + change - 1, kind)
    return replace(reaction, edge_labels=kind[:, None])


def _node_names(trained: TrainedModel, dataset: PackedDataset, explanation: Explanation) -> list[str]:
    labels = explanation.graph.node_labels
    first = explanation.graph.in_degree if labels is None else labels[:, 0]
    kind = {label: node_type(trained, dataset, label) for label in first.unique().tolist()}
    names = [kind[label] for label in first.tolist()]
    if not trained.task.is_sequence or labels is None:
        return names
    attributes = trained.vocabularies.get("node_labels/1", ())
    second = [attributes[label] if label < len(attributes) else "" for label in labels[:, 1].tolist()]
    return [name if word == "__NONE__" else f"{name}  {word}" for name, word in zip(names, second, strict=True)]


def _draw_attention(explanation: Explanation) -> list[Markup]:
    """The maps of each layer, one for each kernel and head."""
    if not explanation.attention or explanation.attention[0].shape[-1] > MAX_NODES:
        return []
    layers = []
    for number, layer in enumerate(explanation.attention):
        maps = []
        for key, kernel in zip(kernel_keys(len(layer)), layer, strict=True):
            for h, head in enumerate(kernel):
                caption = f"{key.name if len(layer) > 1 else 'attention'}, head {h + 1}"
                maps.append(html.figure(heat_map(f"{caption}, layer {number + 1}", head.numpy()), caption))
        layers.append(html.grid(maps, "maps"))
    return layers


def _draw_groups(caption: str, groups: Sequence[NodeGroup]) -> tuple[str, list[Markup], str]:
    """A caption, the mean kernel weights of groups of nodes in each layer, and a note with their sizes."""
    keys, pictures = kernel_keys(groups[0].weights.shape[1]), []
    for layer in range(len(groups[0].weights)):
        rows = [(shorten(group.name, 7), group.weights[layer].tolist()) for group in groups]
        pictures.append(stacked_bars(f"{caption}, layer {layer + 1}", rows, keys).to_svg())
    return caption, pictures, "Nodes: " + ", ".join(f"{group.name}: {group.nodes:,}" for group in groups)
