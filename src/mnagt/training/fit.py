"""The training loop: one for every model and every task."""

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from mnagt import fused
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.files import write_json
from mnagt.graphs.batch import GraphBatch
from mnagt.models.recompute import Recomputed
from mnagt.tasks import Task
from mnagt.training.checkpoint import (
    check_weights,
    load_optimizer,
    load_tensors,
    load_weights,
    optimizer_tensors,
    prefixed,
    random_states,
    save_tensors,
    set_random_states,
    under,
)
from mnagt.training.config import TrainConfig
from mnagt.training.devices import spare_workspaces
from mnagt.training.finite import Step, Watch, are_finite
from mnagt.training.optim import adamw, learning_rate, memory, refresh, release, set_rate
from mnagt.training.progress import Reporter
from mnagt.training.ranks import ALONE, Ranks
from mnagt.training.recorded import RecordedOutputs, RecordedSteps

logger = logging.getLogger(__name__)

JUDGED_GRAPHS, JUDGED_NODES = 256, 8192
"""So many graphs are judged at once, or about so many nodes if that is fewer, even if the batches of training are
smaller: on an H200 GIN with a virtual node judged ogbg-molhiv's 4,113 in 0.01 s, and in batches of 32 in 1.0 s."""
RECORDED_BATCHES = 64
"""A validation part of more batches is judged eagerly: its launches are no longer what it costs."""
NOT_FINITE = "not-finite.json"
"""Beside the checkpoint: the step at which training stopped because a number was not finite, and its graphs."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and did; what it had done is in its checkpoint, if it keeps one."""


@dataclass
class Position:
    """Where training stands. With the weights, all there is to know to go on."""

    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Steps taken of the epoch under way."""
    loss: float = 0.0
    """Sum over the graphs of the epoch under way."""
    best_epoch: int = 0
    best_score: float | None = None
    """Mean validation score of the epochs up to the best, as many as ``choose_over`` says."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One record an epoch."""
    seconds: float = 0.0
    """Time spent training and validating."""

    def __post_init__(self) -> None:
        """It may come from a file that was damaged."""
        counts = (self.epoch, self.step, self.best_epoch)
        if not (all(isinstance(count, int) and count >= 0 for count in counts) and isinstance(self.history, list)):
            raise ValueError("its place in the run is none")
        if len(self.history) != self.epoch or self.best_epoch > self.epoch:
            raise ValueError(f"{len(self.history)} records for {self.epoch} epochs")


class Trainer:
    """Trains ``model`` on ``split.train`` and keeps the weights of the epoch that ``split.valid`` likes best.

    The best single epoch of a hundred is the luckiest, not the best: with GIN on NCI1 it did 1.3 points worse than the
    last on validation graphs that had no say in it (docs/log.md). So an epoch is judged by the mean of the last few
    scores.

    With a ``checkpoint`` path the state is saved there as it goes, and taken up from there if the file exists: the
    outcome is, on a CPU, bit for bit that of a run never interrupted. The test part is not touched. A loss or gradient
    that is not finite ends it within a step, with nothing of it in weights or checkpoint.

    Of several ``ranks`` each has a trainer, and they take every step together.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: PackedDataset,
        split: Split,
        task: Task,
        config: TrainConfig,
        *,
        device: torch.device | str = "cpu",
        checkpoint: Path | None = None,
        reporter: Reporter | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.device = torch.device(device)
        self.model, self.dataset = model.to(self.device), dataset.to(self.device)
        self.split, self.task, self.config = split, task, config
        self.checkpoint, self.should_stop, self.ranks = checkpoint, should_stop, ranks
        self.reporter = reporter or Reporter()
        if config.recompute:
            spare_workspaces(self.device)
            self.model.recomputed = Recomputed()  # type: ignore[assignment]
        self.optimizer = adamw(model, config)
        self._watch = Watch(self.optimizer.seen)
        self._forward: nn.Module = self.model
        self.average = copy.deepcopy(model) if config.average else None
        self.steps_per_epoch = -(-len(split.train) // config.batch_size)
        nodes = float(dataset.sizes.double().mean())
        self.judged_at_once = max(config.batch_size, min(JUDGED_GRAPHS, int(JUDGED_NODES / max(nodes, 1.0))))
        self.at = Position()
        self.best: dict[str, Tensor] = {}
        self._take, self._judge = self._take_eagerly, self._judge_eagerly
        can_record = fused.is_usable(self.device) and self.dataset.is_resident and not ranks.are_many
        if config.record == "auto" and can_record:
            self._take = self._take_recorded
            if len(split.valid) <= RECORDED_BATCHES * self.judged_at_once:
                self._judge = self._judge_recorded
        self._saved = self._counted = time.monotonic()

    def run(self) -> Position:
        """Train to the end; leave the best weights in the model."""
        with (
            _own_randomness(self.device, self.ranks.seed(self.config.seed, 0)),
            products(self.device, self.config.precision),
            self.ranks.over(self.model) as self._forward,
        ):
            if self.checkpoint is not None:
                self._restore(self.checkpoint)
            self._counted = time.monotonic()
            self.reporter.begin(self.config.epochs, self.steps_per_epoch, self.at.history)
            while self.at.epoch < self.config.epochs:
                self._epoch()
            self.save()
        self._forward = self.model
        release(self.optimizer)
        self.model.load_state_dict(self.best)
        return self.at

    def _epoch(self) -> None:
        at, loss = self.at, self._pass()
        said, asked = self._judge(), self.dataset.targets[self.split.valid.to(self.device)]
        valid = self.ranks.told(lambda: self.task.scores(said, asked))
        if math.isnan(valid[self.task.metric]):
            raise InputError(
                f"the validation part has no {self.task.metric}: its answers are all alike; split otherwise"
            )
        at.epoch, at.step, at.loss = at.epoch + 1, 0, 0.0
        at.history.append(self._record(loss, valid))
        stretch = min(self.config.choose_over, self.config.epochs)
        score = mean(record[f"valid_{self.task.metric}"] for record in at.history[-stretch:])
        if at.epoch >= stretch and self.task.is_better(score, at.best_score):
            at.best_epoch, at.best_score = at.epoch, score
            self._check_weights()
            self.best = {name: tensor.detach().clone() for name, tensor in self._judged.state_dict().items()}
        self._count_time()
        self.reporter.epoch(at.history[-1], at.best_score)

    def _pass(self) -> float:
        """Every training graph once, in an order of the epoch's own; the mean loss."""
        at = self.at
        order = torch.Generator().manual_seed(self.config.seed * 1_000_003 + at.epoch)
        total = torch.tensor(at.loss, dtype=torch.float64, device=self.device)
        self.model.train()
        for graphs in self.dataset.chunks(self.split.train, self.config.batch_size, order, at.step):
            set_rate(self.optimizer, self._rate(at.epoch * self.steps_per_epoch + at.step))
            total += self._take(graphs) * len(graphs)
            if bad := self._watch.taken(Step(at.epoch + 1, at.step + 1, graphs)):
                self._stop_at(bad)
            if self.average is not None:
                _move(self.average, self.model, self.config.average if at.epoch or at.step else 0.0)
            at.step += 1
            self.reporter.step(at.step, len(graphs))
            is_due = self.ranks.is_first and time.monotonic() - self._saved >= self.config.checkpoint_seconds
            is_over, is_due = self.ranks.any(self.should_stop(), is_due)
            if is_over or is_due:
                at.loss = total.item()
                self._count_time()
                self.save()
                if is_over:
                    raise Interrupted
        if bad := self._watch.settled():
            self._stop_at(bad)
        return total.item() / len(self.split.train)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.at.seconds, self._counted = self.at.seconds + now - self._counted, now

    def _record(self, loss: float, valid: dict[str, float]) -> dict[str, float]:
        rate = self._rate(self.at.epoch * self.steps_per_epoch - 1)
        scores = {f"valid_{name}": score for name, score in valid.items()}
        return {"epoch": self.at.epoch, "loss": loss, "lr": rate, **scores}

    def _update(self, batch: GraphBatch) -> Float[Tensor, ""]:
        """One step; the loss."""
        loss = self._backward(batch)
        self.optimizer.step(loss=loss)
        return loss

    def _backward(self, batch: GraphBatch) -> Float[Tensor, ""]:
        """The loss, of all ranks' graphs, and its gradients."""
        assert batch.targets is not None
        with autocast(self.device, self.config.precision):
            output = self._forward(batch)
        loss = self.task.loss(output[: len(batch.targets)].float(), batch.targets)
        self.optimizer.zero_grad()
        if not self.ranks.are_many:
            loss.backward()
            return loss.detach()
        answers = self.task.answers(batch.targets)
        part = loss * answers / self.ranks.total(answers).clamp(min=torch.finfo().tiny)
        (part * self.ranks.count).backward()  # ranks' gradients are averaged, and are to be added up
        return self.ranks.total(part.detach())

    def _stop_at(self, bad: Step) -> NoReturn:
        """Tell of a step that was not taken, and of its graphs."""
        if self.device.type == "cuda":  # its gradients are gone
            self._backward(self.ranks.batch(self.dataset, bad.graphs))
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        self._tell_not_finite(bad, gradients, f"the loss is {bad.loss:g} and the norm of its gradient {bad.norm:g}")

    def _check_weights(self) -> None:
        """What is to be kept must be finite: a step can leave a weight or a statistic too large to be one."""
        if bad := self._watch.settled():
            self._stop_at(bad)
        state = self.model.state_dict()
        if not are_finite(state):
            last = self._watch.last or Step(self.at.epoch, self.at.step, self.split.train[:0])
            self._tell_not_finite(last, state, "a weight or a statistic is not finite after it")

    def _tell_not_finite(self, bad: Step, tensors: dict[str, Tensor], what: str) -> NoReturn:
        precision = self.config.precision
        if precision == "auto":
            precision = "fp32" if self.device.type == "cpu" else "tf32"
        where = f"the {len(bad.graphs)} graphs of its batch may hold values too large"
        if self.checkpoint is not None:
            told = bad._asdict() | {
                "loss": str(bad.loss),
                "norm": str(bad.norm),
                "precision": precision,
                "parameters": [name for name, tensor in tensors.items() if not are_finite({name: tensor})],
                "dataset": self.dataset.name,
                "graphs": bad.graphs.tolist(),
            }
            path = self.checkpoint.with_name(NOT_FINITE)
            self.ranks.told(lambda: write_json(path, told))
            where = f"{where}: {path} lists them"
        exact = "" if precision == "fp32" else ", train in fp32"
        remedy = f"lower lr (now {self.config.lr:g}){exact}, or clip the gradient (now {self.config.clip:g}; 0 is not)"
        raise InputError(
            f"epoch {bad.epoch}, step {bad.step}: {what}, in {precision}; begin another run and {remedy}; {where}"
        )

    def _take_eagerly(self, graphs: Int[Tensor, "some"]) -> Float[Tensor, ""]:
        return self._update(self.ranks.batch(self.dataset, graphs))

    def _take_recorded(self, graphs: Int[Tensor, "some"]) -> Float[Tensor, ""]:
        try:
            return self._steps(graphs)
        except RuntimeError as error:
            self._give_up_recording(error)
            return self._take_eagerly(graphs)

    @cached_property
    def _steps(self) -> RecordedSteps:
        def state() -> list[Tensor]:
            return [*self.model.state_dict().values(), *memory(self.optimizer)]

        return RecordedSteps(self._update, self.dataset, self.config.batch_size, state)

    @property
    def _judged(self) -> nn.Module:
        return self.model if self.average is None else self.average

    def _judge_eagerly(self) -> Float[Tensor, "valid outputs"]:
        how = self.judged_at_once, self.ranks, self.task.kept
        return outputs(self._judged, self.dataset, self.split.valid, *how)

    def _judge_recorded(self) -> Float[Tensor, "valid outputs"]:
        try:
            return self._outputs()
        except RuntimeError as error:
            self._give_up_recording(error)
            return self._judge_eagerly()

    @cached_property
    def _outputs(self) -> RecordedOutputs:
        return RecordedOutputs(self._judged, self.dataset, self.split.valid, self.judged_at_once, self.task.kept)

    def _give_up_recording(self, error: Exception) -> None:
        logger.warning("the step is not recorded, and runs slower: %s", " ".join(str(error).split()))
        self._take, self._judge = self._take_eagerly, self._judge_eagerly
        self.__dict__.pop("_steps", None)
        self.__dict__.pop("_outputs", None)

    def _rate(self, step: int) -> float:
        return learning_rate(step, self.config.epochs * self.steps_per_epoch, self.config)

    def save(self) -> None:
        """Write the state, if there is a place for it."""
        self._saved = time.monotonic()
        if (path := self.checkpoint) is None:
            return
        self._check_weights()
        tensors = (
            prefixed("model", self.model.state_dict())
            | prefixed("best", self.best)
            | prefixed("optimizer", optimizer_tensors(self.optimizer))
            | prefixed("random", random_states(self.device, self.ranks))
            | ({} if self.average is None else prefixed("average", self.average.state_dict()))
        )
        self.ranks.told(lambda: save_tensors(path, tensors, asdict(self.at)))  # and nobody leaves before it is there

    def _told_of(self, history: list[dict[str, float]]) -> list[float]:
        """The validation scores of these epochs."""
        return [float(record[f"valid_{self.task.metric}"]) for record in history]

    def _restore(self, path: Path) -> None:
        """Go on from the checkpoint, if there is one."""
        found = self.ranks.told(lambda: load_tensors(path) if path.exists() else None)
        if found is None:
            return
        tensors, position = found
        load_weights(self.model, under("model", tensors), path)
        if best := under("best", tensors):
            check_weights(self.model, best, path)
        if self.average is not None:
            load_weights(self.average, under("average", tensors), path)
        try:
            load_optimizer(self.optimizer, under("optimizer", tensors))
            self.at = Position(**position)
            self._told_of(self.at.history)
            is_same_chance = set_random_states(under("random", tensors), self.device, self.ranks)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: not a checkpoint of this run ({reason}); restore it or train again") from error
        if not is_same_chance:
            step = self.at.epoch * self.steps_per_epoch + self.at.step
            torch.manual_seed(self.ranks.seed(self.config.seed, step))
            if self.ranks.is_first:
                logger.info("the run began with another number of ranks: dropout draws anew from step %d on", step + 1)
        refresh(self.optimizer)
        self.best = {name: t.to(self.device) for name, t in best.items()}


def outputs(
    model: nn.Module,
    dataset: PackedDataset,
    indices: Int[Tensor, "some"],
    batch_size: int = 256,
    ranks: Ranks = ALONE,
    kept: Callable[[Tensor], Tensor] = lambda output: output,
) -> Float[Tensor, "some outputs"]:
    """What the model says of the graphs ``indices``, in that order, in fp32. On the data set's device.

    Of several ``ranks`` each works on some of the graphs, and all learn of the whole. With ``kept``, such as a task's,
    only what it leaves of each batch.
    """
    if model.training:
        model.eval()
    if len(indices) == 0:
        return kept(torch.empty(0, dataset.task.outputs, device=dataset.device))
    graphs, asked = indices.cpu().unique(return_inverse=True)
    hands = ranks.hands(dataset, graphs)
    own = hands[ranks.rank]
    with torch.inference_mode():
        out = [kept(model(batch)) for _, batch in dataset.batches(own if len(own) else graphs[:1], batch_size)]
        said = ranks.gathered(torch.cat(out)[: len(own)], [len(hand) for hand in hands])
    order = torch.cat([some for hand in hands for some in dataset.chunks(hand, batch_size)]).argsort()[asked]
    return said[order.to(dataset.device)]


def outputs_and_targets(
    model: nn.Module, dataset: PackedDataset, indices: Int[Tensor, "some"], batch_size: int = 256, ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor]:
    """Outputs for the graphs ``indices``, and what was asked for."""
    return outputs(model, dataset, indices, batch_size, ranks), dataset.targets[indices.to(dataset.device)]


@contextmanager
def products(device: torch.device, precision: str) -> Iterator[None]:
    """fp32 matrices are multiplied exactly on a CPU and in 'fp32', otherwise in tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if device.type == "cpu" or precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """bf16 where asked for; weights stay fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


@torch.no_grad()
def _move(average: nn.Module, model: nn.Module, share: float) -> None:
    """Leave ``share`` of the average; the rest comes from ``model``. Statistics are averaged like weights."""
    pairs = zip(average.state_dict().values(), model.state_dict().values(), strict=True)
    old, new = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
    get_ema_multi_avg_fn(share)(old, new, 0)


@contextmanager
def _own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Chance within the block comes from ``seed`` alone, and leaves the caller's generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
