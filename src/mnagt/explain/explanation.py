"""Explanations of single predictions: attributions of nodes, kernel weights and attention weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data.readers.smiles import get_smiles
from mnagt.data.registry import category_meanings
from mnagt.explain.attribution import (
    Attribution,
    DeletionCurve,
    GraphCopies,
    Score,
    deletion_curve,
    integrated_gradients,
)
from mnagt.graphs.batch import GraphBatch
from mnagt.inference.model_folder import Graphs, TrainedModel
from mnagt.tasks import ExplainedOutput


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model predicts what it predicts for one graph."""

    index: int
    """The index of the graph in the data set."""
    graph: GraphBatch
    """The graph, as a batch of one."""
    prediction: dict[str, Any]
    """The row of this graph in the table of ``predict``."""
    output: ExplainedOutput
    """The number that is explained."""
    attribution: Attribution
    """Its division among the nodes."""
    kernel_weights: list[Float[Tensor, "nodes kernels"]]
    """The weights of each node for its kernels in each layer; they sum to 1."""
    attention: list[Float[Tensor, "kernels heads all_nodes all_nodes"]]
    """The attention of each node (next to last axis) to each node (last axis) in each layer. Nodes that the readout
    adds come last."""
    smiles: str | None = None
    probability: float | None = None
    """The probability that the explained output stands for, calibrated as the prediction; None for numbers."""


def explain(
    trained: TrainedModel,
    graphs: Graphs,
    indices: Int[Tensor, "explained"] | None = None,
    *,
    target: str | None = None,
    steps: int = 8,
    device: torch.device | str = "cpu",
    on_step: Callable[[], None] = lambda: None,
) -> list[Explanation]:
    """Explain the predictions of a model for some graphs, by default all.

    The predicted class, the most probable of several labels, the first of several numbers, or the predicted name is
    explained. ``target`` chooses another class, label or number. ``steps`` is the number of intervals with which the
    path of the integrated gradients begins. What is explained is the prediction as ``predict`` gives it: in the units
    of the targets, with the model's temperature if it is calibrated, and with its random forest, if it has one, as a
    part that is not divided among nodes (``Attribution.baseline`` holds it). ``on_step`` is called after every
    forward pass along the path, and before and after the path; what it raises ends the explanation.
    """
    dataset, indices = trained.read(graphs, indices, device)
    output = trained.outputs(graphs, indices, device)
    on_step()
    table, output = trained.decode(output), trained.apply_temperature(output)
    explained = trained.task.explained_outputs(output, target, category_meanings(dataset, "classes"))
    probabilities = [each.confidence(output)[row].item() for row, each in enumerate(explained)]
    explained = [_with_temperature(each, trained) for each in explained]

    def with_step(score: Score, output: Float[Tensor, "points outputs"]) -> Float[Tensor, "points"]:
        on_step()
        return score(output)

    scores = [partial(with_step, each.score) for each in explained]
    predictor = trained.predictor()
    attributions = integrated_gradients(predictor, dataset, indices, scores, steps=steps)
    smiles = None if dataset.texts is None else get_smiles(dataset)
    explanations = []
    for row, index in enumerate(indices.tolist()):
        on_step()
        graph = GraphCopies(predictor, dataset, index).batch(1)
        with torch.inference_mode():
            weights = [layer[: graph.num_nodes].cpu() for layer in trained.model.kernel_weights(graph)]
            attention = [layer[0].cpu() for layer in trained.model.attention_weights(graph)]
        prediction, graph = {name: column[row] for name, column in table.items()}, graph.to("cpu")
        fields = (index, graph, prediction, explained[row], attributions[row], weights, attention)
        more = {"smiles": None if smiles is None else smiles[index]}
        more["probability"] = None if explained[row].is_number else probabilities[row]
        explanations.append(Explanation(*fields, **more))
    return explanations


def _with_temperature(explained: ExplainedOutput, trained: TrainedModel) -> ExplainedOutput:
    """The same of a model's outputs before its temperature."""
    return replace(
        explained,
        score=lambda out: explained.score(trained.apply_temperature(out)),
        confidence=lambda out: explained.confidence(trained.apply_temperature(out)),
    )


def check_by_deletion(
    trained: TrainedModel,
    graphs: Graphs,
    explanations: Sequence[Explanation],
    *,
    is_cut: bool = False,
    orders: int = 5,
    device: torch.device | str = "cpu",
) -> DeletionCurve:
    """Check attributions by deleting nodes in their order, see ``deletion_curve``."""
    indices = torch.tensor([each.index for each in explanations], dtype=torch.long)
    dataset, indices = trained.read(graphs, indices, device)
    attributions = [
        each.attribution.nodes.abs() if each.output.is_number else each.attribution.nodes for each in explanations
    ]
    confidences = [each.output.confidence for each in explanations]
    options = {"is_cut": is_cut, "orders": orders}
    return deletion_curve(trained.predictor(), dataset, indices, attributions, confidences, **options)
