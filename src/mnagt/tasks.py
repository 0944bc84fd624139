"""What is asked of a model: the loss, the scores, and how an output reads. A data set brings its task."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError
from mnagt.registry import lookup
from mnagt.settings import at_least, one_of

NO_CLASS = -100
"""The class of a missing graph: cross entropy leaves it out."""


class Task(ABC):
    """A frozen dataclass; ``kind`` names it in files."""

    kind: ClassVar[str]
    metric: str
    """The score that chooses the epoch."""
    higher_is_better: ClassVar[bool] = True

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Numbers that a model gives for a graph."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean over the answers known, as many as ``answers`` says; 0 where there are none."""

    def answers(self, target: Tensor) -> Float[Tensor, ""]:
        """What ``loss`` divides by: so losses of parts of a batch make up that of the whole."""
        return torch.full((), float(len(target)), device=target.device)

    @abstractmethod
    def scores(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Every score of these outputs, or of what is ``kept`` of them; ``metric`` among them."""

    def kept(self, output: Tensor) -> Tensor:
        """As much of the outputs as ``scores`` reads: no more is held of a whole part that is to be scored."""
        return output

    @abstractmethod
    def decode(self, output: Tensor) -> dict[str, list]:
        """Outputs as columns of a table, one row a graph."""

    def belief(self, output: Float[Tensor, "*some outputs"]) -> Float[Tensor, "*some outputs"]:
        """What is averaged when several answer as one: probabilities, or numbers."""
        return output

    def said(self, belief: Float[Tensor, "*some outputs"]) -> Float[Tensor, "*some outputs"]:
        """The output that says so: undoes ``belief``."""
        return belief

    def truth(self, target: Tensor) -> Float[Tensor, "graphs outputs"]:
        """The belief of one who knows; NaN where nobody does."""
        raise InputError(f"trees answer questions, classes and numbers, and this task is {self.kind}; set trees to 0")

    def fitted(self, target: Tensor) -> "Task":
        """This task with whatever it takes from the training targets."""
        return self

    def balanced(self, target: Tensor) -> "Task":
        """This task with a loss in which every class of the training targets counts the same."""
        raise InputError(f"classes can be balanced, and this task is {self.kind}; leave out balance")

    def smoothed(self, share: float) -> "Task":
        """The same task, with so much of each answer spread over all classes in the loss."""
        raise InputError(f"one class of several can be smoothed, and this task is {self.kind}; leave out smoothing")

    def is_better(self, score: float, than: float | None) -> bool:
        """A score that is not a number is better than nothing, and worse than any other."""
        if than is None or math.isnan(than):
            return True
        return score > than if self.higher_is_better else score < than


@dataclass(frozen=True)
class SingleLabel(Task):
    """One class of several; scored by accuracy."""

    classes: tuple[str, ...]
    weights: tuple[float, ...] = ()
    """How much a graph of each class counts in the loss; none where all count the same."""
    smoothing: float = 0.0
    """Share of each answer that the loss spreads over all classes."""
    kind: ClassVar[str] = "single-label"
    metric = "accuracy"

    def __post_init__(self) -> None:
        for name in ("classes", "weights"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.classes) < 2:
            raise InputError(f"a classification needs at least 2 classes, got {len(self.classes)}: {self.classes}")

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def loss(self, output: Float[Tensor, "graphs classes"], target: Int[Tensor, "graphs"]) -> Float[Tensor, ""]:
        weight = _numbers(self.weights, output.dtype, output.device) if self.weights else None
        loss = F.cross_entropy(output, target, weight, reduction="sum", label_smoothing=self.smoothing)
        return loss / _divisor(self.answers(target))

    def answers(self, target: Int[Tensor, "graphs"]) -> Float[Tensor, ""]:
        is_known = target != NO_CLASS
        if not self.weights:
            return is_known.sum().float()
        weights = _numbers(self.weights, torch.float32, target.device)
        return (weights[target.clamp(min=0)] * is_known).sum()

    def balanced(self, target: Int[Tensor, "graphs"]) -> "SingleLabel":
        """A graph counts by how rare its class is: graphs / (classes · graphs of its class)."""
        counts = torch.bincount(target[target >= 0].cpu(), minlength=self.outputs).clamp(min=1)
        return replace(self, weights=tuple((counts.sum() / (len(counts) * counts)).tolist()))

    def smoothed(self, share: float) -> "SingleLabel":
        return replace(self, smoothing=share)

    def scores(self, output: Float[Tensor, "graphs classes"], target: Int[Tensor, "graphs"]) -> dict[str, float]:
        return {"accuracy": metrics.accuracy(output.argmax(dim=1), target)}

    def decode(self, output: Float[Tensor, "graphs classes"]) -> dict[str, list]:
        probability = output.softmax(dim=1).cpu()
        columns: dict[str, list] = {"prediction": [self.classes[i] for i in probability.argmax(dim=1).tolist()]}
        return columns | {f"p({name})": probability[:, i].tolist() for i, name in enumerate(self.classes)}

    def belief(self, output: Float[Tensor, "*some classes"]) -> Float[Tensor, "*some classes"]:
        return output.softmax(dim=-1)

    def said(self, belief: Float[Tensor, "*some classes"]) -> Float[Tensor, "*some classes"]:
        return belief.clamp(min=torch.finfo(belief.dtype).tiny).log()

    def truth(self, target: Int[Tensor, "graphs"]) -> Float[Tensor, "graphs classes"]:
        known = F.one_hot(target.clamp(min=0), self.outputs).float()
        return known.where((target != NO_CLASS)[:, None], torch.nan)


@dataclass(frozen=True)
class MultiLabel(Task):
    """Yes-or-no questions, some unanswered (NaN); scored by mean average precision and ROC-AUC over the questions.

    A question that only has answers of one kind in the graphs scored has no score, and is left out of the mean: the
    rule of OGB's evaluator.
    """

    names: tuple[str, ...]
    metric: str = "ap"
    """ap or rocauc."""
    weights: tuple[float, ...] = ()
    """How much a yes counts in the loss of each question, beside a no; none where both count the same."""
    kind: ClassVar[str] = "multi-label"

    def __post_init__(self) -> None:
        for name in ("names", "weights"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        one_of(self, metric=("ap", "rocauc"))

    @property
    def outputs(self) -> int:
        return len(self.names)

    def loss(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, ""]:
        is_labelled = target.isfinite()
        weight = _numbers(self.weights, output.dtype, output.device) if self.weights else None
        each = F.binary_cross_entropy_with_logits(output, target.nan_to_num(), reduction="none", pos_weight=weight)
        return (each * is_labelled).sum() / _divisor(self.answers(target))

    def answers(self, target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, ""]:
        return target.isfinite().sum().float()

    def balanced(self, target: Float[Tensor, "graphs tasks"]) -> "MultiLabel":
        """A yes counts as much more as it is rarer than a no; in a question of one answer only, the same."""
        yes, no = (target == 1).sum(dim=0), (target == 0).sum(dim=0)
        return replace(self, weights=tuple((no / yes).where((yes > 0) & (no > 0), 1.0).tolist()))

    def scores(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> dict[str, float]:
        score, is_positive, is_labelled = output.T.contiguous(), target.T > 0, target.T.isfinite()
        auc = metrics.roc_auc(score, is_positive, is_labelled)
        has_both = auc.isfinite()
        ap = metrics.average_precision(score, is_positive, is_labelled)
        return {"ap": ap[has_both].mean().item(), "rocauc": auc[has_both].mean().item()}

    def decode(self, output: Float[Tensor, "graphs tasks"]) -> dict[str, list]:
        probability = output.sigmoid().cpu()
        return {f"p({name})": probability[:, i].tolist() for i, name in enumerate(self.names)}

    def belief(self, output: Float[Tensor, "*some tasks"]) -> Float[Tensor, "*some tasks"]:
        return output.sigmoid()

    def said(self, belief: Float[Tensor, "*some tasks"]) -> Float[Tensor, "*some tasks"]:
        return belief.logit(eps=torch.finfo(belief.dtype).eps)

    def truth(self, target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, "graphs tasks"]:
        return target


@dataclass(frozen=True)
class Regression(Task):
    """Numbers, some missing (NaN). A model learns them standardised; scores and answers are in their own units."""

    names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    """Mean of each target over the training graphs; none before ``fitted``."""
    std: tuple[float, ...] = ()
    kind: ClassVar[str] = "regression"
    metric = "rmse"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("names", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def outputs(self) -> int:
        return len(self.names)

    def fitted(self, target: Float[Tensor, "graphs tasks"]) -> "Regression":
        known = [column[column.isfinite()].double() for column in target.unbind(dim=1)]
        for name, column in zip(self.names, known, strict=True):
            if len(column) == 0:
                raise InputError(f"target {name!r} has no value in the training part; leave it out or split otherwise")
        mean = tuple(column.mean().item() for column in known)
        std = tuple(column.std(correction=0).item() or 1.0 for column in known)
        return replace(self, mean=mean, std=std)

    def _scale(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if not self.mean:
            return like.new_zeros(self.outputs), like.new_ones(self.outputs)
        return _numbers(self.mean, like.dtype, like.device), _numbers(self.std, like.dtype, like.device)

    def loss(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, ""]:
        mean, std = self._scale(target)
        is_known = target.isfinite()
        error = (output - (target.nan_to_num() - mean) / std).square()
        return (error * is_known).sum() / _divisor(self.answers(target))

    def answers(self, target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, ""]:
        return target.isfinite().sum().float()

    def scores(self, output: Float[Tensor, "graphs tasks"], target: Float[Tensor, "graphs tasks"]) -> dict[str, float]:
        mean, std = self._scale(target)
        is_known = target.isfinite()
        predicted, target = (output * std + mean)[is_known], target[is_known]
        return {"rmse": metrics.rmse(predicted, target), "mae": metrics.mae(predicted, target)}

    def decode(self, output: Float[Tensor, "graphs tasks"]) -> dict[str, list]:
        mean, std = self._scale(output)
        value = (output * std + mean).cpu()
        return {name: value[:, i].tolist() for i, name in enumerate(self.names)}

    def truth(self, target: Float[Tensor, "graphs tasks"]) -> Float[Tensor, "graphs tasks"]:
        mean, std = self._scale(target)
        return (target - mean) / std


UNKNOWN, END = "__UNK__", "__EOS__"


class Suggestion(NamedTuple):
    """A sequence of words, and how likely the model takes it to be."""

    words: tuple[str, ...]
    probability: float


@dataclass(frozen=True)
class SubTokens(Task):
    """A sequence of words (the name of a method, cut up); scored by F1 between the sets of said and of true words.

    As in ogbg-code2 (Hu et al., 2020): each of the first ``positions`` words is a choice among the commonest words of
    the training graphs, ``UNKNOWN`` and ``END``, whatever stands beside it. Every true word counts for the score, also
    one that cannot be said, and ``UNKNOWN`` said is a word said wrongly.

    A row of targets holds the keys of a graph's words (``word_key``), then ``NO_CLASS``: words have the same keys in
    every data set. A graph without any is missing.
    """

    words: tuple[str, ...]
    """Those of the data set; once ``fitted``, those that can be said, commonest first."""
    most_words: int = 5000
    """That ``fitted`` takes."""
    positions: int = 5
    kind: ClassVar[str] = "sub-tokens"
    metric = "f1"

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        at_least(self, 1, "most_words", "positions")
        if not self.words:
            raise InputError("a sequence of words needs words to choose from, got none")

    @property
    def outputs(self) -> int:
        return self.positions * (len(self.words) + 2)

    def fitted(self, target: Int[Tensor, "graphs longest"]) -> "SubTokens":
        """The commonest words; of equally common ones, those met first."""
        keys = target.flatten().cpu()
        keys, place, counts = keys[keys >= 0].unique(return_inverse=True, return_counts=True)
        first = torch.full_like(keys, len(place)).scatter_reduce(0, place, torch.arange(len(place)), "amin")
        order = first.argsort()
        order = order[counts[order].argsort(descending=True, stable=True)][: self.most_words]
        word_of = {word_key(word): word for word in self.words}
        return replace(self, words=tuple(word_of[key] for key in keys[order].tolist()))

    def loss(self, output: Float[Tensor, "graphs outputs"], target: Int[Tensor, "graphs longest"]) -> Float[Tensor, ""]:
        classes = self._classes(target).flatten()
        loss = F.cross_entropy(self._choices(output).flatten(0, 1), classes, reduction="sum")
        return loss / _divisor((classes != NO_CLASS).sum())

    def answers(self, target: Int[Tensor, "graphs longest"]) -> Float[Tensor, ""]:
        return (self._classes(target) != NO_CLASS).sum().float()

    def kept(
        self, output: Float[Tensor, "graphs outputs"] | Int[Tensor, "graphs positions"]
    ) -> Int[Tensor, "graphs positions"]:
        """The classes chosen: of 25,010 numbers a graph in ogbg-code2, five."""
        return self._choices(output).argmax(dim=2) if output.is_floating_point() else output

    def scores(
        self,
        output: Float[Tensor, "graphs outputs"] | Int[Tensor, "graphs positions"],
        target: Int[Tensor, "graphs longest"],
    ) -> dict[str, float]:
        said = self._said(self.kept(output))
        keys = torch.tensor([*map(word_key, (*self.words, UNKNOWN)), NO_CLASS], device=said.device)
        return metrics.set_f1(keys[said], target)

    def decode(self, output: Float[Tensor, "graphs outputs"]) -> dict[str, list]:
        """What is likeliest at each position, up to the first ``END``, and how likely that is in all."""
        probability, choice = self._choices(output).softmax(dim=2).max(dim=2)
        said = self._said(choice)
        is_told = said.roll(1, dims=1) != self._end  # the first END counts too
        is_told[:, 0] = True
        names = [*self.words, UNKNOWN]
        rows = [" ".join(names[i] for i in row if i != self._end) for row in said.tolist()]
        return {"prediction": rows, "p": probability.where(is_told, 1.0).prod(dim=1).tolist()}

    def belief(self, output: Float[Tensor, "*some outputs"]) -> Float[Tensor, "*some outputs"]:
        return output.unflatten(-1, (self.positions, -1)).softmax(dim=-1).flatten(-2)

    def said(self, belief: Float[Tensor, "*some outputs"]) -> Float[Tensor, "*some outputs"]:
        return belief.clamp(min=torch.finfo(belief.dtype).tiny).log()

    def suggestions(self, output: Float[Tensor, "graphs outputs"], count: int = 5) -> list[list[Suggestion]]:
        """The ``count`` likeliest sequences for each graph, none of them empty or with ``UNKNOWN`` in it."""
        logs = self._choices(output).log_softmax(dim=2)
        words = logs[:, :, : len(self.words)].topk(min(count, len(self.words)), dim=2)
        each = (words.values.tolist(), words.indices.tolist(), logs[:, :, self._end].tolist())
        return [self._likeliest(*graph, count) for graph in zip(*each, strict=True)]

    def _likeliest(
        self, logs: list[list[float]], choices: list[list[int]], ends: list[float], count: int
    ) -> list[Suggestion]:
        """Positions know nothing of each other: the likeliest sequences begin with the likeliest beginnings."""
        begun: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for log, choice, end in zip(logs, choices, ends, strict=True):
            ended += [(so_far + end, taken) for so_far, taken in begun if taken]
            longer = [(so_far + p, (*taken, i)) for so_far, taken in begun for p, i in zip(log, choice, strict=True)]
            begun = sorted(longer, reverse=True)[:count]
        best = sorted(ended + begun, reverse=True)[:count]
        return [Suggestion(tuple(self.words[i] for i in taken), math.exp(p)) for p, taken in best]

    @property
    def _end(self) -> int:
        """The class of ``END``; that of ``UNKNOWN`` is one less, and those of the words are below."""
        return len(self.words) + 1

    def _choices(self, output: Float[Tensor, "graphs outputs"]) -> Float[Tensor, "graphs positions classes"]:
        return output.unflatten(1, (self.positions, -1))

    def _said(self, choice: Int[Tensor, "graphs positions"]) -> Int[Tensor, "graphs positions"]:
        """The classes chosen, all of them ``END`` from the first one on."""
        return choice.where((choice == self._end).cumsum(dim=1) == 0, self._end)

    def _classes(self, target: Int[Tensor, "graphs longest"]) -> Int[Tensor, "graphs positions"]:
        """The class at each position; ``NO_CLASS`` at all positions of a missing graph."""
        keys, class_of = _sorted_keys(self.words, target.device)
        spare = max(self.positions - target.shape[1], 0)
        key = F.pad(target, (0, spare), value=NO_CLASS)[:, : self.positions].contiguous()
        place = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        known = class_of[place].where(keys[place] == key, self._end - 1)
        return known.where(key != NO_CLASS, self._end).where(key[:, :1] != NO_CLASS, NO_CLASS)


def word_key(word: str) -> int:
    """A number for a word, from 0 to 2^63 - 1, the same everywhere; that two words share one can be ruled out."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big") >> 1


def word_keys(sequences: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], Int[Tensor, "graphs longest"]]:
    """The words of these sequences, as met, and the targets that ``SubTokens`` asks for."""
    key_of = {word: word_key(word) for words in sequences for word in words}
    longest = max(map(len, sequences), default=0)
    rows = [[*(key_of[word] for word in words), *[NO_CLASS] * (longest - len(words))] for words in sequences]
    return tuple(key_of), torch.tensor(rows, dtype=torch.long).view(len(sequences), longest)


@lru_cache(maxsize=8)
def _sorted_keys(words: tuple[str, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The words' keys in order, and the place of each among the words. Kept: a recorded step copies nothing in."""
    keys, place = torch.tensor([word_key(word) for word in words]).sort()
    return keys.to(device), place.to(device)


@lru_cache(maxsize=64)
def _numbers(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values on the device. Kept: a recorded step copies nothing in."""
    return torch.tensor(values, dtype=dtype, device=device)


def _divisor(answers: Tensor) -> Tensor:
    """``answers``, or 1 where there are none: the sum is then 0."""
    return answers.where(answers > 0, 1)


@dataclass(frozen=True)
class Unasked(Task):
    """Graphs without targets: they can be predicted, not learned from."""

    kind: ClassVar[str] = "no targets"
    metric = "none"

    @property
    def outputs(self) -> int:
        return 0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise InputError("these graphs have no targets to learn from")

    def scores(self, output: Tensor, target: Tensor) -> dict[str, float]:
        return {}

    def decode(self, output: Tensor) -> dict[str, list]:
        return {}


TASKS: dict[str, type[Task]] = {task.kind: task for task in (SingleLabel, MultiLabel, Regression, SubTokens, Unasked)}


def task_to_dict(task: Task) -> dict[str, Any]:
    """The task as files keep it: its kind and its fields."""
    return {"kind": task.kind, **asdict(task)}  # type: ignore[call-overload]


def task_from_dict(content: dict[str, Any]) -> Task:
    """The task that ``task_to_dict`` wrote."""
    kind = content.get("kind", "")
    task = lookup(TASKS, kind, "task")
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
    del fields["kind"]
    try:
        return task(**fields)
    except TypeError as error:
        raise InputError(f"task {kind!r}: {error}; it was written by another version of mnagt") from None
