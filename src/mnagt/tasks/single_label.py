"""One class of several for each graph."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mnagt import metrics
from mnagt.errors import InputError, join_names, quote
from mnagt.tasks.base import NO_CLASS, ScoreGroups, Task, constant, describe_each, divide
from mnagt.tasks.explained_output import ExplainedOutput, choose_outputs
from mnagt.tasks.target_column import TargetColumn, fold_class, parse_class

_log = logging.getLogger(__name__)

_NEGATIONS = ("in", "non", "non-", "non ", "not ", "no ", "un", "un-")
"""Before a class, in lower case, these name its opposite."""
Logits = Float[Tensor, "graphs classes"]
Classes = Int[Tensor, "graphs"]


@dataclass(frozen=True)
class SingleLabel(Task):
    """One class of several for each graph: softmax, cross entropy, accuracy.

    Of two classes, the second is the positive one of ROC-AUC, average precision and F1, unless its name denies the
    first's: of ``active`` and ``inactive`` it is ``active``.

    >>> SingleLabel(("inactive", "active")).decode(torch.tensor([[0.0, 0.0]]))
    {'prediction': ['inactive'], 'p(inactive)': [0.5], 'p(active)': [0.5]}
    """

    classes: tuple[str, ...]
    """Their names; a target is a place among them."""
    weights: tuple[float, ...] = ()
    """The weight of each class in the loss; empty where all weigh the same."""
    smoothing: float = 0.0
    """The share of each label that the loss spreads over all classes."""
    metric: str = "accuracy"
    kind: ClassVar[str] = "single-label"
    is_parsable: ClassVar[bool] = True
    missing_target: ClassVar[float] = NO_CLASS
    thresholds_per_output: ClassVar[int] = 1
    link: ClassVar[Literal["identity", "logit", "log"] | None] = "log"
    fitted_fields: ClassVar[tuple[str, ...]] = ("weights",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) < 2:
            raise InputError(f"a classification needs at least 2 classes, got {len(self.classes)}: {self.classes}")

    @property
    def target_names(self) -> tuple[str, ...]:
        return self.classes

    @property
    def positive_class(self) -> int:
        """The place of the positive one of two classes.

        >>> SingleLabel(("active", "inactive")).positive_class, SingleLabel(("no", "yes")).positive_class
        (0, 1)
        """
        first, second = (fold_class(name) for name in self.classes[:2])
        return int(second not in {f"{negation}{first}" for negation in _NEGATIONS})

    @property
    def column_kind(self) -> Literal["number", "label"] | None:
        return "label" if len(self.classes) == 2 else None

    def from_predicted_columns(self, predicted: Float[Tensor, "graphs 1"]) -> Logits:
        return self.from_probability(torch.cat([1 - predicted, predicted], dim=1))

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    def describe_targets(self, target: Classes) -> str:
        labelled = target[target != NO_CLASS].cpu()
        shares = torch.bincount(labelled, minlength=self.num_outputs) / max(len(labelled), 1)
        return describe_each(self.classes, [f"{100 * share:.0f} %" for share in shares.tolist()], "classes")

    def count_classes(self, target: Classes) -> dict[str, int]:
        counts = torch.bincount(target[target != NO_CLASS].cpu(), minlength=self.num_outputs)
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def describe_precision(self, graphs: int) -> str:
        """The interval of a binomial share at its widest: 1.96 · sqrt(0.25 / n)."""
        return f"an accuracy measured on it has a 95 % interval of up to ±{min(0.98 / graphs**0.5, 1):.2f}"

    def with_class_weights(self, target: Classes) -> "SingleLabel":
        """The weight of a class is (number of graphs) / (number of classes · graphs of this class)."""
        counts = torch.bincount(target[target >= 0].cpu(), minlength=self.num_outputs).clamp(min=1)
        return replace(self, weights=tuple((counts.sum() / (len(counts) * counts)).tolist()))

    def with_plain_loss(self) -> "SingleLabel":
        return replace(self, weights=(), smoothing=0.0)

    def with_label_smoothing(self, share: float) -> "SingleLabel":
        return replace(self, smoothing=share)

    def loss(self, output: Logits, target: Classes) -> Float[Tensor, ""]:
        weight = constant(self.weights, output.dtype, output.device) if self.weights else None
        loss = F.cross_entropy(output, target, weight, reduction="sum", label_smoothing=self.smoothing)
        return divide(loss, self.loss_weight(target))

    def loss_weight(self, target: Classes) -> Float[Tensor, ""]:
        is_labelled = target != NO_CLASS
        if not self.weights:
            return is_labelled.sum().float()
        weights = constant(self.weights, torch.float32, target.device)
        return (weights[target.clamp(min=0)] * is_labelled).sum()

    def stratification_classes(self, target: Classes) -> Classes:
        return target

    def merge_targets(self, target: Classes, group: Int[Tensor, "graphs"]) -> Int[Tensor, "groups"]:
        is_labelled, groups = target != NO_CLASS, int(group.max()) + 1 if len(group) else 0
        votes = torch.zeros(groups, self.num_outputs, dtype=torch.long)
        votes.index_put_((group[is_labelled], target[is_labelled]), torch.ones(1, dtype=torch.long), accumulate=True)
        most, chosen = votes.max(dim=1)
        return chosen.where((votes == most[:, None]).sum(dim=1) == 1, NO_CLASS)

    @property
    def metric_names(self) -> tuple[str, ...]:
        ranked = ("rocauc", "ap", "mcc", "f1") if len(self.classes) == 2 else ("mcc", "macro_f1")
        return ("accuracy", *ranked, "brier", "ece")

    def compute_metrics(
        self, output: Float[Tensor, "*resamples graphs classes"], target: Int[Tensor, "*resamples graphs"]
    ) -> dict[str, Tensor]:
        """Accuracy, MCC, Brier score and calibration error; of two classes also ROC-AUC, average precision and F1.

        The Brier score over two classes is halved, as is usual; the calibration error is that of the predicted class.
        """
        is_labelled, confusion = target >= 0, metrics.confusion_matrix(output.argmax(dim=-1), target, self.num_outputs)
        values = {"accuracy": metrics.accuracy(confusion)}
        positive = self.positive_class
        if self.num_outputs == 2:
            score = output[..., positive] - output[..., 1 - positive]
            areas = metrics.areas_under_curves(score, target == positive, is_labelled)
            values |= dict(zip(("rocauc", "ap"), areas, strict=True))
        values["mcc"], f1 = metrics.mcc(confusion), metrics.f1(confusion)
        values |= {"f1": f1[..., positive]} if self.num_outputs == 2 else {"macro_f1": f1.mean(dim=-1)}
        probability = output.double().softmax(dim=-1)
        confidence, predicted = probability.max(dim=-1)
        error = (probability - F.one_hot(target.clamp(min=0), self.num_outputs)).square().sum(dim=-1)
        brier = metrics.masked_mean(error / 2 if self.num_outputs == 2 else error, is_labelled)
        ece = metrics.expected_calibration_error(confidence, predicted == target, is_labelled)
        return values | {"brier": brier, "ece": ece}

    def decode(self, output: Logits) -> dict[str, list]:
        probability = output.softmax(dim=1)
        predicted = [self.classes[i] for i in probability.argmax(dim=1).tolist()]
        columns = zip(self.classes, probability.T.tolist(), strict=True)
        return {"prediction": predicted} | {f"p({name})": column for name, column in columns}

    def to_probability(self, output: Float[Tensor, "*any classes"]) -> Float[Tensor, "*any classes"]:
        return output.softmax(dim=-1)

    def from_probability(self, probability: Float[Tensor, "*any classes"]) -> Float[Tensor, "*any classes"]:
        return probability.clamp(min=torch.finfo(probability.dtype).tiny).log()

    def target_probability(self, target: Classes) -> Logits:
        one_hot = F.one_hot(target.clamp(min=0), self.num_outputs).float()
        return one_hot.where((target != NO_CLASS)[:, None], torch.nan)

    def sample_weights(self, probability: Logits) -> Logits:
        if not self.weights:
            return super().sample_weights(probability)
        return (probability.nan_to_num() @ torch.tensor(self.weights))[:, None].expand_as(probability)

    def conformal_scores(self, output: Logits, target: Classes) -> ScoreGroups:
        """One minus the probability of the label, for the graphs of each class."""
        scores = 1 - output.softmax(dim=1)
        return [scores[target == c, c] for c in range(self.num_outputs)]

    def is_in_set(self, output: Logits, thresholds: Float[Tensor, "classes"]) -> Bool[Tensor, "graphs classes"]:
        """Which classes are in the prediction set of each graph: those within the thresholds, and the most probable.

        Label-conditional split-conformal prediction (Vovk, 2012).
        """
        probability = output.softmax(dim=1)
        is_within = (1 - probability).double() <= thresholds.to(output.device)
        return is_within | F.one_hot(probability.argmax(dim=1), self.num_outputs).bool()

    def prediction_sets(self, output: Logits, thresholds: Float[Tensor, "classes"], level: float) -> dict[str, list]:
        rows = self.is_in_set(output, thresholds).tolist()
        sets = ["|".join(name for name, is_in in zip(self.classes, row, strict=True) if is_in) for row in rows]
        return {f"set({level:g})": sets}

    def explained_outputs(
        self, output: Logits, target: str | None = None, class_names: Sequence[str] = ()
    ) -> list[ExplainedOutput]:
        """The log-odds of the predicted class, or of ``target``."""
        names = class_names if len(class_names) == len(self.classes) else self.classes

        def explain_class(c: int) -> ExplainedOutput:
            def log_odds(out: Logits) -> Float[Tensor, "graphs"]:
                others = torch.cat([out[:, :c], out[:, c + 1 :]], dim=1)
                return out[:, c] - others.logsumexp(dim=1)

            return ExplainedOutput(names[c], "log-odds", log_odds, lambda out: out.softmax(dim=1)[:, c])

        chosen = choose_outputs(target, (self.classes, names), "class", output.argmax(dim=1))
        return [explain_class(c) for c in chosen]

    @classmethod
    def from_columns(cls, columns: Sequence[TargetColumn]) -> "SingleLabel":
        column = _single(columns)
        if len(column.classes) < 2:
            raise InputError(
                f"{column.label}: column {quote(column.name)} holds one value only; a classification needs two classes"
            )
        for name, spellings in column.spellings.items():
            if len(spellings) > 1:
                _log.warning(
                    "%s: %s in column %s are one class, %s", column.label, join_names(spellings), column.name, name
                )
        return cls(column.classes)

    def parse_targets(self, columns: Sequence[TargetColumn]) -> Classes:
        folded = [fold_class(name) for name in self.classes]
        index = {name: i for i, name in enumerate(folded) if folded.count(name) == 1}
        index |= {name: i for i, name in enumerate(self.classes)}
        expected = f"not one of the classes: {join_names(self.classes)}"

        def parse(text: str) -> int | None:
            name = parse_class(text)
            return index.get(name, index.get(fold_class(name)))

        return torch.tensor(_single(columns).parse(parse, NO_CLASS, expected), dtype=torch.long)


def _single(columns: Sequence[TargetColumn]) -> TargetColumn:
    if len(columns) > 1:
        raise InputError(
            f"{columns[0].label}: classes are in one column, and {len(columns)} columns are named; choose one"
        )
    return columns[0]
