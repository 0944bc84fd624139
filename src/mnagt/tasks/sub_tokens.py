"""A sequence of words for each graph."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError, quote
from mnagt.settings import PositiveInt
from mnagt.tasks.base import NO_CLASS, Suggestion, Task, divide
from mnagt.tasks.explained_output import ExplainedOutput, Output

UNKNOWN, END = "__UNK__", "__EOS__"


WordKeys = Int[Tensor, "graphs longest"]
PositionClasses = Int[Tensor, "graphs positions"]


@dataclass(frozen=True)
class SubTokens(Task):
    """A sequence of words for each graph, such as the parts of a method's name; scored by F1 between sets of words.

    As in ogbg-code2 (Hu et al., 2020): each of the first ``positions`` words is classified independently, over the most
    common words of the training graphs, ``UNKNOWN`` and ``END``. All words of the target count for the score, also
    those outside the vocabulary, and a predicted ``UNKNOWN`` is a wrong word.

    A row of targets holds the keys of a graph's words (``word_key``), padded with ``NO_CLASS``: words have the same
    keys in every data set. The target of a graph without words is missing.

    >>> SubTokens(("get", "name"), positions=3).num_outputs  # two words, UNKNOWN and END, at each of three positions
    12
    """

    words: tuple[str, ...]
    """The words of the data set; after ``fit`` the vocabulary, most common first."""
    most_words: PositiveInt = 5000
    """The largest size of the vocabulary."""
    positions: PositiveInt = 5
    kind: ClassVar[str] = "sub-tokens"
    metric = "f1"
    is_sequence: ClassVar[bool] = True
    link: ClassVar[Literal["identity", "logit", "log"] | None] = None
    missing_target: ClassVar[float] = NO_CLASS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.words:
            raise InputError("a task of words needs a vocabulary, got no words")

    @property
    def num_outputs(self) -> int:
        return self.positions * (len(self.words) + 2)

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.words

    def can_score(self, other: Task) -> bool:
        """Targets are keys of words, the same for every vocabulary."""
        return self.kind == other.kind

    def fit(self, target: WordKeys) -> "SubTokens":
        """Take the most common words as vocabulary; of equally common words, those that come first."""
        keys = target.flatten().cpu()
        keys, index, counts = keys[keys >= 0].unique(return_inverse=True, return_counts=True)
        first = torch.full_like(keys, len(index)).scatter_reduce(0, index, torch.arange(len(index)), "amin")
        order = first.argsort()
        order = order[counts[order].argsort(descending=True, stable=True)][: self.most_words]
        word_of = {word_key(word): word for word in self.words}
        return replace(self, words=tuple(word_of[key] for key in keys[order].tolist()))

    def loss(self, output: Output, target: WordKeys) -> Float[Tensor, ""]:
        classes = self._classes(target).flatten()
        loss = F.cross_entropy(self._by_position(output).flatten(0, 1), classes, reduction="sum")
        return divide(loss, (classes != NO_CLASS).sum())

    def loss_weight(self, target: WordKeys) -> Float[Tensor, ""]:
        return (self._classes(target) != NO_CLASS).sum().float()

    def reduce_output(self, output: Output | PositionClasses) -> PositionClasses:
        """The predicted classes: in ogbg-code2 5 numbers for each graph in place of 25,010."""
        return self._by_position(output).argmax(dim=2) if output.is_floating_point() else output

    def scores(self, output: Output | PositionClasses, target: WordKeys) -> dict[str, float]:
        predicted = self._cut_at_end(self.reduce_output(output))
        keys = torch.tensor([*map(word_key, (*self.words, UNKNOWN)), NO_CLASS], device=predicted.device)
        return metrics.set_f1(keys[predicted], target)

    def decode(self, output: Output) -> dict[str, list]:
        """The most probable class at each position up to the first ``END``, and the probability of the sequence."""
        probability, classes = self._by_position(output).softmax(dim=2).max(dim=2)
        predicted = self._cut_at_end(classes)
        is_counted = predicted.roll(1, dims=1) != self._end  # the first END too
        is_counted[:, 0] = True
        names = [*self.words, UNKNOWN]
        rows = [" ".join(names[i] for i in row if i != self._end) for row in predicted.tolist()]
        return {"prediction": rows, "p": probability.where(is_counted, 1.0).prod(dim=1).tolist()}

    def to_probability(self, output: Float[Tensor, "*any outputs"]) -> Float[Tensor, "*any outputs"]:
        return output.unflatten(-1, (self.positions, -1)).softmax(dim=-1).flatten(-2)

    def from_probability(self, probability: Float[Tensor, "*any outputs"]) -> Float[Tensor, "*any outputs"]:
        return probability.clamp(min=torch.finfo(probability.dtype).tiny).log()

    def suggest(self, output: Output, count: int = 5) -> list[list[Suggestion]]:
        """The ``count`` most probable sequences for each graph that are not empty and have no ``UNKNOWN``."""
        logs = self._by_position(output).log_softmax(dim=2)
        words = logs[:, :, : len(self.words)].topk(min(count, len(self.words)), dim=2)
        each = (words.values.tolist(), words.indices.tolist(), logs[:, :, self._end].tolist())
        return [self._beam_search(*graph, count) for graph in zip(*each, strict=True)]

    def _beam_search(
        self, logs: list[list[float]], classes: list[list[int]], ends: list[float], count: int
    ) -> list[Suggestion]:
        """Exact, as positions are independent: a prefix of one of the best sequences is one of the best prefixes."""
        prefixes: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        ended: list[tuple[float, tuple[int, ...]]] = []
        for log, choice, end in zip(logs, classes, ends, strict=True):
            ended += [(total + end, prefix) for total, prefix in prefixes if prefix]
            longer = [(total + p, (*prefix, i)) for total, prefix in prefixes for p, i in zip(log, choice, strict=True)]
            prefixes = sorted(longer, reverse=True)[:count]
        best = sorted(ended + prefixes, reverse=True)[:count]
        return [Suggestion(tuple(self.words[i] for i in prefix), math.exp(total)) for total, prefix in best]

    def explained_outputs(
        self, output: Output, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """The log-probability of the predicted words and the ``END`` after them."""
        if target is not None:
            raise InputError(f"only the predicted name can be explained, not {quote(target)}; leave out the target")

        def explain_words(classes: Int[Tensor, "positions"], words: str) -> ExplainedOutput:
            classes = classes[: int((classes == self._end).cumsum(dim=0).eq(0).sum()) + 1]  # up to the first END

            def log_probability(out: Output) -> Float[Tensor, "graphs"]:
                logs = self._by_position(out).log_softmax(dim=2)
                return logs[:, torch.arange(len(classes)), classes.to(out.device)].sum(dim=1)

            return ExplainedOutput(
                words or "(no name)", "log-probability", log_probability, lambda out: log_probability(out).exp()
            )

        rows = zip(self.reduce_output(output), self.decode(output)["prediction"], strict=True)
        return [explain_words(classes, words) for classes, words in rows]

    @property
    def _end(self) -> int:
        """The class of ``END``. The class before it is ``UNKNOWN``; those below are words."""
        return len(self.words) + 1

    def _by_position(self, output: Output) -> Float[Tensor, "graphs positions classes"]:
        return output.unflatten(1, (self.positions, -1))

    def _cut_at_end(self, classes: PositionClasses) -> PositionClasses:
        """The classes with ``END`` at all positions after the first ``END``."""
        return classes.where((classes == self._end).cumsum(dim=1) == 0, self._end)

    def _classes(self, target: WordKeys) -> PositionClasses:
        """The class at each position; ``NO_CLASS`` at all positions of a graph whose target is missing."""
        keys, class_of = _sorted_keys(self.words, target.device)
        padding = max(self.positions - target.shape[1], 0)
        key = F.pad(target, (0, padding), value=NO_CLASS)[:, : self.positions].contiguous()
        index = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        classes = class_of[index].where(keys[index] == key, self._end - 1)
        return classes.where(key != NO_CLASS, self._end).where(key[:, :1] != NO_CLASS, NO_CLASS)


def word_key(word: str) -> int:
    """A hash of a word, from 0 to 2^63 - 1, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big") >> 1


def word_keys(sequences: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], WordKeys]:
    """The distinct words of these sequences in order of appearance, and the sequences as targets of ``SubTokens``.

    >>> words, targets = word_keys([["get", "name"], ["name"]])
    >>> words, targets.shape
    (('get', 'name'), torch.Size([2, 2]))
    """
    key_of = {word: word_key(word) for sequence in sequences for word in sequence}
    longest = max(map(len, sequences), default=0)
    rows = [[*map(key_of.__getitem__, row), *[NO_CLASS] * (longest - len(row))] for row in sequences]
    return tuple(key_of), torch.tensor(rows, dtype=torch.long).view(len(sequences), longest)


@lru_cache(maxsize=8)
def _sorted_keys(words: tuple[str, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The sorted keys of the words and the class of each key. Cached for the same reason as ``constant``."""
    keys, classes = torch.tensor(list(map(word_key, words))).sort()
    return keys.to(device), classes.to(device)
