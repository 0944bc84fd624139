"""Why a model says what it says of a graph: what its nodes weighed, whom they attended to, and which ones mattered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.data import meanings
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import smiles_of
from mnagt.errors import InputError, shown
from mnagt.explain.attribution import Attribution, DeletionCurve, Say, deletion_curve, integrated_gradients
from mnagt.graphs.batch import GraphBatch
from mnagt.registry import lookup
from mnagt.tasks import MultiLabel, Regression, SingleLabel, SubTokens, Task
from mnagt.training.model_folder import Graphs, Trained, as_dataset


@dataclass(frozen=True)
class Question:
    """What is explained of a model's outputs for a graph."""

    answer: str
    """In words."""
    unit: str
    """What ``say`` counts in."""
    say: Say
    left: Say
    """What is left of the answer in these outputs, from 0 to 1."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """All there is to say of one graph."""

    index: int
    """Its number among the graphs."""
    graph: GraphBatch
    said: dict[str, Any]
    """The model's answer, as ``predict`` gives it."""
    question: Question
    attribution: Attribution
    kernel_weights: list[Float[Tensor, "nodes kernels"]]
    """How each node weighs its kernels, layer by layer; the weights of a node add up to 1."""
    attention: list[Float[Tensor, "kernels heads all_nodes all_nodes"]]
    """How each node shares its attention among the nodes (last axis), layer by layer. A readout may have added nodes of
    its own at the end."""
    smiles: str | None = None


def explain(
    trained: Trained,
    graphs: Graphs,
    indices: Int[Tensor, "some"] | None = None,
    *,
    target: str | None = None,
    steps: int = 8,
    device: torch.device | str = "cpu",
) -> list[Explanation]:
    """Explains the model's answers for these graphs (all, if none are named).

    What is explained is the class that the model says, the likeliest of several questions, the first of several
    numbers, or a whole name; ``target`` names another class, question or number.
    """
    dataset, indices = _prepared(trained, graphs, indices, device)
    model = trained.model.to(device)
    output, table = trained.outputs(graphs, indices, device), trained.predict(graphs, indices, device)
    asked = questions(trained.task, output, target, meanings(dataset, "classes"))
    found = integrated_gradients(model, dataset, indices, lambda row: asked[row].say, steps=steps)
    smiles = None if dataset.texts is None else smiles_of(dataset)
    told = []
    for row, index in enumerate(indices.tolist()):
        graph = dataset.batch(torch.tensor([index]))
        with torch.inference_mode():
            weights = [layer[: graph.num_nodes].cpu() for layer in model.kernel_weights(graph)]
            attention = [layer[0].cpu() for layer in model.attention_weights(graph)]
        said = {name: column[row] for name, column in table.items()}
        text = None if smiles is None else smiles[index]
        told.append(Explanation(index, graph.to("cpu"), said, asked[row], found[row], weights, attention, text))
    return told


def checked_by_deletion(
    trained: Trained,
    graphs: Graphs,
    explanations: Sequence[Explanation],
    *,
    is_cut: bool = False,
    orders: int = 5,
    device: torch.device | str = "cpu",
) -> DeletionCurve:
    """What becomes of the answers as nodes fall silent (see ``deletion_curve``)."""
    indices = torch.tensor([each.index for each in explanations], dtype=torch.long)
    dataset, indices = _prepared(trained, graphs, indices, device)
    weighty = [each.attribution.nodes for each in explanations]
    if isinstance(trained.task, Regression):  # a number can change both ways
        weighty = [nodes.abs() for nodes in weighty]
    asked = [each.question.left for each in explanations]
    how = {"is_cut": is_cut, "orders": orders}
    return deletion_curve(trained.model.to(device), dataset, indices, weighty, asked.__getitem__, **how)


def _prepared(
    trained: Trained, graphs: Graphs, indices: Int[Tensor, "some"] | None, device: torch.device | str
) -> tuple[PackedDataset, Int[Tensor, "some"]]:
    dataset = trained.aligned(as_dataset(graphs))
    return dataset.to(device), torch.arange(len(dataset)) if indices is None else indices


def questions(
    task: Task, output: Float[Tensor, "graphs outputs"], target: str | None = None, names: Sequence[str] = ()
) -> list[Question]:
    """What there is to explain in each row of ``output``; ``names`` say what classes mean, where they are known."""
    return lookup(_QUESTIONS, task.kind, "task that can be explained")(task, output, target, names)


def _classes(
    task: SingleLabel, output: Float[Tensor, "graphs classes"], target: str | None, names: Sequence[str]
) -> list[Question]:
    names = names if len(names) == len(task.classes) else task.classes
    chosen = _chosen(target, (task.classes, names), "class", output.argmax(dim=1))

    def question(c: int) -> Question:
        def say(out: Float[Tensor, "graphs classes"]) -> Float[Tensor, "graphs"]:
            others = torch.cat([out[:, :c], out[:, c + 1 :]], dim=1)
            return out[:, c] - others.logsumexp(dim=1)

        return Question(names[c], "log-odds", say, lambda out: out.softmax(dim=1)[:, c])

    return [question(c) for c in chosen]


def _yes_or_no(
    task: MultiLabel, output: Float[Tensor, "graphs tasks"], target: str | None, names: Sequence[str]
) -> list[Question]:
    chosen = _chosen(target, (task.names,), "question", output.argmax(dim=1))
    return [
        Question(task.names[i], "log-odds", lambda out, i=i: out[:, i], lambda out, i=i: out[:, i].sigmoid())
        for i in chosen
    ]


def _numbers(
    task: Regression, output: Float[Tensor, "graphs tasks"], target: str | None, names: Sequence[str]
) -> list[Question]:
    chosen = _chosen(target, (task.names,), "number", torch.zeros(len(output), dtype=torch.long))
    scale = task.std or (1.0,) * task.outputs

    def question(row: int, i: int) -> Question:
        was = output[row, i].item()
        return Question(
            task.names[i],
            f"units of {task.names[i]}",
            lambda out: out[:, i] * scale[i],
            lambda out: (-(out[:, i] - was).abs()).exp(),
        )

    return [question(row, i) for row, i in enumerate(chosen)]


def _names(
    task: SubTokens, output: Float[Tensor, "graphs outputs"], target: str | None, names: Sequence[str]
) -> list[Question]:
    if target is not None:
        raise InputError(
            f"only what the model says of a name can be explained, not {shown(target)}; leave out the target"
        )
    end = len(task.words) + 1
    choices = output.unflatten(1, (task.positions, -1)).argmax(dim=2)

    def question(choice: Int[Tensor, "positions"], words: str) -> Question:
        told = int((choice == end).cumsum(dim=0).eq(0).sum()) + 1  # the first END counts too
        choice = choice[:told]

        def say(out: Float[Tensor, "graphs outputs"]) -> Float[Tensor, "graphs"]:
            logs = out.unflatten(1, (task.positions, -1)).log_softmax(dim=2)
            return logs[:, torch.arange(len(choice)), choice.to(out.device)].sum(dim=1)

        return Question(words or "(no name)", "log-probability", say, lambda out: say(out).exp())

    said = task.decode(output)["prediction"]
    return [question(choice, words) for choice, words in zip(choices, said, strict=True)]


def _chosen(
    target: str | None, names: tuple[Sequence[str], ...], kind: str, otherwise: Int[Tensor, "graphs"]
) -> list[int]:
    """The place of ``target`` among any of the lists of names, for all graphs."""
    if target is None:
        return otherwise.tolist()
    for known in names:
        if target in known:
            return [list(known).index(target)] * len(otherwise)
    raise InputError(f"the model knows no {kind} {shown(target)}; there are: {', '.join(names[-1])}")


_QUESTIONS: dict[str, Callable[..., list[Question]]] = {
    SingleLabel.kind: _classes,
    MultiLabel.kind: _yes_or_no,
    Regression.kind: _numbers,
    SubTokens.kind: _names,
}
