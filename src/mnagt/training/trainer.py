"""The training loop: one for every model and every task."""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from mnagt import ops
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError, one_line
from mnagt.files import write_json
from mnagt.graphs.batch import GraphBatch
from mnagt.inference.outputs import autocast, matmul_precision
from mnagt.inference.weights import add_prefix, check_weights, load_tensors, load_weights, save_tensors, select_prefix
from mnagt.migrations import rename_weights
from mnagt.nn.activation_checkpointing import CheckpointedModel
from mnagt.nn.graph_model import GraphModel
from mnagt.ops import parameter_copies
from mnagt.runs.config import TrainConfig
from mnagt.tasks import Task
from mnagt.training.cuda_graphs import CapturedOutputs, CapturedSteps
from mnagt.training.distributed import ALONE, Ranks
from mnagt.training.nan_guard import Step, Watch, are_finite
from mnagt.training.optim import (
    adamw,
    freeze_encoder,
    learning_rate,
    load_optimizer,
    optimizer_state,
    optimizer_tensors,
    set_rate,
)
from mnagt.training.progress import Reporter

_log = logging.getLogger(__name__)

EVALUATION_GRAPHS, EVALUATION_NODES = 256, 8192
"""Graphs, or about so many nodes if that is fewer, that are evaluated at once, even if training batches are smaller."""
CAPTURED_BATCHES = 64
"""A validation part of more batches is evaluated eagerly: kernel launches no longer dominate its time."""
NOT_FINITE = "not-finite.json"
"""Beside the checkpoint: the step at which training stopped because a number was not finite, and its graphs."""


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a request; its state is in the checkpoint, if there is one."""


@dataclass
class Position:
    """The progress of a training, as it is saved in a checkpoint."""

    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Steps taken of the epoch under way."""
    loss: float = 0.0
    """Sum over the graphs of the epoch under way."""
    best_epoch: int = 0
    best_score: float | None = None
    """Mean validation score of the epochs up to the best, as many as ``selection_window`` says."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One record an epoch."""
    seconds: float = 0.0
    """Time spent training and validating."""

    def __post_init__(self) -> None:
        """Check values, which may come from a damaged file."""
        counts = (self.epoch, self.step, self.best_epoch)
        if not (all(isinstance(count, int) and count >= 0 for count in counts) and isinstance(self.history, list)):
            raise ValueError("its position in the run is invalid")
        if len(self.history) != self.epoch or self.best_epoch > self.epoch:
            raise ValueError(f"{len(self.history)} records for {self.epoch} epochs")


class Trainer:
    """Trains ``model`` on ``split.train`` and keeps the weights of the epoch with the best score on ``split.valid``.

    The score of an epoch is the mean over the last ``selection_window`` epochs. With a ``checkpoint`` path the state is
    saved there, and restored if the file exists: on a CPU the outcome is bit for bit that of a run without
    interruption. The test part is not read. A loss or gradient that is not finite stops training within a step and
    never reaches weights or checkpoint. In distributed training each of the ``ranks`` has a trainer.

    Args:
        model: A module from a ``GraphBatch`` to outputs [graphs, outputs].
        dataset: The graphs.
        split: Indices of the training and validation part.
        task: Loss and scores.
        config: Settings of training.
        device: Where to train.
        checkpoint: The file of the state; None to keep none.
        reporter: Called with the progress of each epoch.
        should_stop: Asked after each step; True ends training after a checkpoint.
        ranks: The processes of distributed training.

    >>> from mnagt import Trainer, build_model, load_dataset, random_split
    >>> dataset = load_dataset("MUTAG")
    >>> model = build_model("gin", {"dim": 8, "depth": 1}, dataset.features, 2)
    >>> config = TrainConfig(epochs=2, batch_size=64)
    >>> trainer = Trainer(model, dataset, random_split(188, seed=0), dataset.task, config, device="cpu")
    >>> len(trainer.run().history)
    2
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
        self._frozen = freeze_encoder(model) if config.freeze == "encoder" else nn.ModuleList()
        self.optimizer = adamw(model, config)
        self._watch = Watch(self.optimizer.seen, self._stop_at)
        self._network: nn.Module = model
        if config.activation_checkpointing:
            assert isinstance(model, GraphModel)
            self._network = CheckpointedModel(model)
        self._forward = self._network
        self.ema = copy.deepcopy(model) if config.ema_decay else None
        self._evaluated = model if self.ema is None else self.ema
        self.steps_per_epoch = -(-len(split.train) // config.batch_size)
        self.evaluation_batch_size = evaluation_batch_size(dataset, config)
        self._validation = self.dataset, split.valid, self.evaluation_batch_size, task.reduce_output
        self.at = Position()
        self.best: dict[str, Tensor] = {}
        can_capture = ops.is_usable(self.device) and self.dataset.is_resident and not ranks.is_distributed
        self._is_captured = config.cuda_graphs == "auto" and can_capture and task.level == "graph"
        self._saved = self._counted = time.monotonic()

    def run(self) -> Position:
        """Train to the end; leave the best weights in the model."""
        with (
            torch.random.fork_rng([self.device] if self.device.type == "cuda" else []),
            matmul_precision(self.device, self.config.precision),
            self.ranks.wrap_model(self._network) as self._forward,
        ):
            torch.manual_seed(self.ranks.seed(self.config.seed, 0))
            if self.checkpoint is not None:
                self._restore(self.checkpoint)
            self._counted = time.monotonic()
            self.reporter.begin(self.config.epochs, self.steps_per_epoch, self.at.history)
            while not self.is_finished:
                self._epoch()
            self.save()
        self._forward = self._network
        parameter_copies.release(self.model.parameters())
        self.model.load_state_dict(self.best)
        return self.at

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done, or ``patience`` is at an end."""
        patience, at = self.config.patience, self.at
        is_exhausted = bool(patience and at.best_epoch and at.epoch - at.best_epoch >= patience)
        return at.epoch >= self.config.epochs or is_exhausted

    def _epoch(self) -> None:
        at, loss = self.at, self._train_epoch()
        output, target = self._validate(), self.dataset.targets[self.split.valid.to(self.device)]
        valid = self.ranks.broadcast_from_rank0(lambda: validation_scores(self.task, output, target))
        at.epoch, at.step, at.loss = at.epoch + 1, 0, 0.0
        record = {"epoch": at.epoch, "loss": loss, "lr": self._rate(at.epoch * self.steps_per_epoch - 1)}
        at.history.append(record | {f"valid_{name}": score for name, score in valid.items()})
        window = min(self.config.selection_window, self.config.epochs)
        score = mean(record[f"valid_{self.task.metric}"] for record in at.history[-window:])
        if at.epoch >= window and self.task.is_better(score, at.best_score):
            at.best_epoch, at.best_score = at.epoch, score
            self._check_weights()
            self.best = {name: tensor.detach().clone() for name, tensor in self._evaluated.state_dict().items()}
        self._count_time()
        self.reporter.epoch(at.history[-1], at.best_score)

    def _train_epoch(self) -> float:
        """Train on every training graph once, in random order; the mean loss."""
        at = self.at
        order = torch.Generator().manual_seed(self.config.seed * 1_000_003 + at.epoch)
        total = torch.tensor(at.loss, dtype=torch.float64, device=self.device)
        self.model.train()
        self._frozen.eval()
        for graphs in self.dataset.batch_indices(self.split.train, self.config.batch_size, order, at.step):
            set_rate(self.optimizer, self._rate(at.epoch * self.steps_per_epoch + at.step))
            total += self._step(graphs) * len(graphs)
            self._watch.check(Step(at.epoch + 1, at.step + 1, graphs))
            if self.ema is not None:
                _update_ema(self.ema, self.model, self.config.ema_decay if at.epoch or at.step else 0.0)
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
        self._watch.check_all()
        return total.item() / len(self.split.train)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.at.seconds, self._counted = self.at.seconds + now - self._counted, now

    def _step(self, graphs: Int[Tensor, "some"]) -> Float[Tensor, ""]:
        """Train on these graphs; the loss."""
        if self._is_captured:
            try:
                return self._captured_steps(graphs)
            except RuntimeError as error:
                self._give_up_capturing(error)
        return self._update(self.ranks.batch(self.dataset, graphs))

    def _update(self, batch: GraphBatch) -> Float[Tensor, ""]:
        loss = self._backward(batch)
        self.optimizer.step(loss=loss)
        return loss

    def _backward(self, batch: GraphBatch) -> Float[Tensor, ""]:
        """The loss over the graphs of all ranks; gradients are left in the parameters."""
        assert batch.targets is not None
        with autocast(self.device, self.config.precision):
            output = self._forward(batch)
        loss = self.task.loss(output[: len(batch.targets)].float(), batch.targets)
        self.optimizer.zero_grad()
        if not self.ranks.is_distributed:
            loss.backward()
            return loss.detach()
        weight = self.task.loss_weight(batch.targets)
        part = loss * weight / self.ranks.sum(weight).clamp(min=torch.finfo().tiny)
        (part * self.ranks.world_size).backward()  # DistributedDataParallel averages gradients
        return self.ranks.sum(part.detach())

    def _stop_at(self, bad: Step) -> NoReturn:
        """Report a step with a loss or gradient that is not finite."""
        if self.device.type == "cuda":  # its gradients are gone
            self._backward(self.ranks.batch(self.dataset, bad.graphs))
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        self._report_not_finite(bad, gradients, f"the loss is {bad.loss:g} and the norm of its gradient {bad.norm:g}")

    def _check_weights(self) -> None:
        """Refuse to keep weights or running statistics that are not finite."""
        self._watch.check_all()
        state = self.model.state_dict()
        if not are_finite(state):
            last = self._watch.last or Step(self.at.epoch, self.at.step, self.split.train[:0])
            self._report_not_finite(last, state, "a weight or a statistic is not finite after it")

    def _report_not_finite(self, bad: Step, tensors: dict[str, Tensor], what: str) -> NoReturn:
        precision = self.config.precision
        if precision == "auto":
            precision = "fp32" if self.device.type == "cpu" else "tf32"
        where = f"the {len(bad.graphs)} graphs of its batch may hold values too large"
        if self.checkpoint is not None:
            report = bad._asdict() | {
                "loss": str(bad.loss),
                "norm": str(bad.norm),
                "precision": precision,
                "parameters": [name for name, tensor in tensors.items() if not are_finite({name: tensor})],
                "dataset": self.dataset.name,
                "graphs": bad.graphs.tolist(),
            }
            path = self.checkpoint.with_name(NOT_FINITE)
            self.ranks.broadcast_from_rank0(lambda: write_json(path, report))
            where = f"{where}: {path} lists them"
        exact = "" if precision == "fp32" else ", train in fp32"
        remedy = f"lower lr (now {self.config.lr:g}){exact}, or clip the gradient (now {self.config.clip:g}; 0 is not)"
        raise InputError(
            f"epoch {bad.epoch}, step {bad.step}: {what}, in {precision}; begin another run and {remedy}; {where}"
        )

    @cached_property
    def _captured_steps(self) -> CapturedSteps:
        def state() -> list[Tensor]:
            return [*self.model.state_dict().values(), *optimizer_state(self.optimizer)]

        return CapturedSteps(self._update, self.dataset, self.config.batch_size, state)

    def _validate(self) -> Float[Tensor, "valid outputs"]:
        if self._is_captured and len(self.split.valid) <= CAPTURED_BATCHES * self.evaluation_batch_size:
            try:
                return self._captured_outputs()
            except RuntimeError as error:
                self._give_up_capturing(error)
        return self.ranks.outputs(self._evaluated, *self._validation)

    @cached_property
    def _captured_outputs(self) -> CapturedOutputs:
        return CapturedOutputs(self._evaluated, *self._validation)

    def _give_up_capturing(self, error: Exception) -> None:
        _log.warning("the step is not captured as a CUDA graph, and runs slower: %s", one_line(error))
        self._is_captured = False
        self.__dict__.pop("_captured_steps", None)
        self.__dict__.pop("_captured_outputs", None)

    def _rate(self, step: int) -> float:
        return learning_rate(step, self.config.epochs * self.steps_per_epoch, self.config)

    def save(self) -> None:
        """Write the checkpoint, if there is a path for it; other ranks wait until it is written."""
        self._saved = time.monotonic()
        if (path := self.checkpoint) is None:
            return
        self._check_weights()
        tensors = (
            add_prefix("model/", self.model.state_dict())
            | add_prefix("best/", self.best)
            | add_prefix("optimizer/", optimizer_tensors(self.optimizer, self.model))
            | add_prefix("random/", self.ranks.random_states(self.device))
            | ({} if self.ema is None else add_prefix("average/", self.ema.state_dict()))
        )
        self.ranks.broadcast_from_rank0(lambda: save_tensors(path, tensors, asdict(self.at)))

    def _restore(self, path: Path) -> None:
        """Restore the state from the checkpoint, if it exists."""
        checkpoint = self.ranks.broadcast_from_rank0(lambda: load_tensors(path) if path.exists() else None)
        if checkpoint is None:
            return
        tensors, position = checkpoint
        load_weights(self.model, _model_weights("model/", tensors), path)
        if best := _model_weights("best/", tensors):
            check_weights(self.model.state_dict(), best, path)
        if self.ema is not None:
            load_weights(self.ema, _model_weights("average/", tensors), path)
        try:
            load_optimizer(self.optimizer, self.model, select_prefix("optimizer/", tensors))
            self.at = Position(**position)
            for record in self.at.history:
                float(record[f"valid_{self.task.metric}"])
            has_random_states = self.ranks.set_random_states(select_prefix("random/", tensors), self.device)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{path}: not a checkpoint of this run ({one_line(error)}); restore it or train again"
            ) from error
        if not has_random_states:
            step = self.at.epoch * self.steps_per_epoch + self.at.step
            torch.manual_seed(self.ranks.seed(self.config.seed, step))
            if self.ranks.is_first:
                _log.info(
                    "the run began with another number of ranks: dropout is seeded anew from step %d on", step + 1
                )
        self.optimizer.refresh()
        self.best = {name: t.to(self.device) for name, t in best.items()}


def _model_weights(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a network under ``prefix``. (0.1 kept a forest beside it, which was not yet grown.)"""
    weights = rename_weights(select_prefix(prefix, tensors))
    return {name: tensor for name, tensor in weights.items() if not name.startswith("forest.")}


def evaluation_batch_size(dataset: PackedDataset, config: TrainConfig) -> int:
    """Graphs that are evaluated at once."""
    nodes = max(float(dataset.sizes.double().mean()), 1.0)
    return max(config.batch_size, min(EVALUATION_GRAPHS, int(EVALUATION_NODES / nodes)))


def validation_scores(task: Task, output: Tensor, target: Tensor) -> dict[str, float]:
    """The scores of the validation part; an error where it has none by which to choose."""
    scores = task.scores(output, target)
    if math.isnan(scores[task.metric]):
        raise InputError(f"the validation part has no {task.metric}: its targets are all alike; split otherwise")
    return scores


@torch.no_grad()
def _update_ema(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the average towards ``model``; ``decay`` of it stays. Running statistics are averaged like weights."""
    pairs = zip(average.state_dict().values(), model.state_dict().values(), strict=True)
    old, new = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
    get_ema_multi_avg_fn(decay)(old, new, 0)
