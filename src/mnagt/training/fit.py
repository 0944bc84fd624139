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

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from mnagt import fused
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.models.recompute import Recomputed
from mnagt.tasks import Task
from mnagt.training.checkpoint import (
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
from mnagt.training.optim import adamw, learning_rate, memory, refresh, release, set_rate
from mnagt.training.progress import Reporter
from mnagt.training.recorded import RecordedOutputs, RecordedSteps

logger = logging.getLogger(__name__)

RECORDED_BATCHES = 64
"""A validation part of more batches is judged eagerly: its launches are no longer what it costs."""


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


class Trainer:
    """Trains ``model`` on ``split.train`` and keeps the weights of the epoch that ``split.valid`` likes best.

    The best single epoch of a hundred is the luckiest, not the best: with GIN on NCI1 it did 1.3 points worse than the
    last on validation graphs that had no say in it (docs/log.md). So an epoch is judged by the mean of the last few
    scores.

    With a ``checkpoint`` path the state is saved there as it goes, and taken up from there if the file exists: the
    outcome is, on a CPU, bit for bit that of a run never interrupted. The test part is not touched.
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
    ) -> None:
        self.device = torch.device(device)
        self.model, self.dataset = model.to(self.device), dataset.to(self.device)
        self.split, self.task, self.config = split, task, config
        self.checkpoint, self.should_stop = checkpoint, should_stop
        self.reporter = reporter or Reporter()
        if config.recompute:
            self.model.recomputed = Recomputed()  # type: ignore[assignment]
        self.optimizer = adamw(model, config)
        self.average = copy.deepcopy(model) if config.average else None
        self.steps_per_epoch = -(-len(split.train) // config.batch_size)
        self.at = Position()
        self.best: dict[str, Tensor] = {}
        self._take, self._judge = self._take_eagerly, self._judge_eagerly
        if config.record == "auto" and fused.is_usable(self.device):
            self._take = self._take_recorded
            if len(split.valid) <= RECORDED_BATCHES * config.batch_size:
                self._judge = self._judge_recorded
        self._saved = self._counted = time.monotonic()

    def run(self) -> Position:
        """Train to the end; leave the best weights in the model."""
        with _own_randomness(self.device, self.config.seed), products(self.device, self.config.precision):
            if self.checkpoint is not None and self.checkpoint.exists():
                self._restore(self.checkpoint)
            self._counted = time.monotonic()
            self.reporter.begin(self.config.epochs, self.steps_per_epoch, self.at.history)
            while self.at.epoch < self.config.epochs:
                self._epoch()
            self.save()
        release(self.optimizer)
        self.model.load_state_dict(self.best)
        return self.at

    def _epoch(self) -> None:
        at, loss = self.at, self._pass()
        valid = self.task.scores(self._judge(), self.dataset.targets[self.split.valid.to(self.device)])
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
            if self.average is not None:
                _move(self.average, self.model, self.config.average if at.epoch or at.step else 0.0)
            at.step += 1
            self.reporter.step(at.step, len(graphs))
            if self.should_stop() or time.monotonic() - self._saved >= self.config.checkpoint_seconds:
                at.loss = total.item()
                self._count_time()
                self.save()
                if self.should_stop():
                    raise Interrupted
        loss = total.item() / len(self.split.train)
        if math.isnan(loss):
            raise InputError(
                f"the loss is not a number in epoch {at.epoch + 1}; lower lr (now {self.config.lr}) or train in fp32"
            )
        return loss

    def _count_time(self) -> None:
        now = time.monotonic()
        self.at.seconds, self._counted = self.at.seconds + now - self._counted, now

    def _record(self, loss: float, valid: dict[str, float]) -> dict[str, float]:
        rate = self._rate(self.at.epoch * self.steps_per_epoch - 1)
        scores = {f"valid_{name}": score for name, score in valid.items()}
        return {"epoch": self.at.epoch, "loss": loss, "lr": rate, **scores}

    def _update(self, batch: GraphBatch) -> Float[Tensor, ""]:
        """One step; the loss."""
        assert batch.targets is not None
        with autocast(self.device, self.config.precision):
            output = self.model(batch)
        loss = self.task.loss(output[: len(batch.targets)].float(), batch.targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _take_eagerly(self, graphs: Int[Tensor, "some"]) -> Float[Tensor, ""]:
        return self._update(self.dataset.batch(graphs))

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
        return outputs(self._judged, self.dataset, self.split.valid, self.config.batch_size)

    def _judge_recorded(self) -> Float[Tensor, "valid outputs"]:
        try:
            return self._outputs()
        except RuntimeError as error:
            self._give_up_recording(error)
            return self._judge_eagerly()

    @cached_property
    def _outputs(self) -> RecordedOutputs:
        return RecordedOutputs(self._judged, self.dataset, self.split.valid, self.config.batch_size)

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
        if self.checkpoint is None:
            return
        tensors = (
            prefixed("model", self.model.state_dict())
            | prefixed("best", self.best)
            | prefixed("optimizer", optimizer_tensors(self.optimizer))
            | prefixed("random", random_states(self.device))
            | ({} if self.average is None else prefixed("average", self.average.state_dict()))
        )
        save_tensors(self.checkpoint, tensors, asdict(self.at))

    def _restore(self, path: Path) -> None:
        tensors, position = load_tensors(path)
        load_weights(self.model, under("model", tensors), path)
        if self.average is not None:
            load_weights(self.average, under("average", tensors), path)
        try:
            load_optimizer(self.optimizer, under("optimizer", tensors))
            set_random_states(under("random", tensors), self.device)
            self.at = Position(**position)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: not a checkpoint of this run ({reason}); restore it or train again") from error
        refresh(self.optimizer)
        self.best = {name: t.to(self.device) for name, t in under("best", tensors).items()}


def outputs(
    model: nn.Module, dataset: PackedDataset, indices: Int[Tensor, "some"], batch_size: int = 256
) -> Float[Tensor, "some outputs"]:
    """What the model says of the graphs ``indices``, in that order, in fp32. On the data set's device."""
    if model.training:
        model.eval()
    if len(indices) == 0:
        return torch.empty(0, dataset.task.outputs, device=dataset.device)
    graphs, asked = indices.unique(return_inverse=True)
    out, seen = [], []
    with torch.inference_mode():
        for some, batch in dataset.batches(graphs, batch_size):
            out.append(model(batch))
            seen.append(some)
    order = torch.cat(seen).argsort()[asked]
    return torch.cat(out)[order.to(dataset.device)]


def outputs_and_targets(
    model: nn.Module, dataset: PackedDataset, indices: Int[Tensor, "some"], batch_size: int = 256
) -> tuple[Tensor, Tensor]:
    """Outputs for the graphs ``indices``, and what was asked for."""
    return outputs(model, dataset, indices, batch_size), dataset.targets[indices.to(dataset.device)]


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
