"""What ``test_ranks.py`` has several ranks do, and one alone: ``torchrun rank_cases.py FOLDER CASE ...``.

Each rank leaves what came out of a case in ``FOLDER/CASE-RANK.safetensors``.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import random_split
from mnagt.inference.weights import save_tensors
from mnagt.models.registry import build_model, full_settings
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.tasks import MultiLabel, SingleLabel
from mnagt.training.distributed import Ranks, join_ranks
from mnagt.training.fit_model import fit_model
from mnagt.training.progress import Reporter
from mnagt.training.trainer import Interrupted, Trainer

CONFIG = TrainConfig(epochs=1, batch_size=37, lr=3e-4, warmup=0.0, checkpoint_seconds=1e9)
TRAIN = 97  # the last batch of three is of 23 graphs


def with_gaps() -> PackedDataset:
    """Three questions, a fifth of them unanswered: ranks have unlike numbers of answers."""
    data, chance = load_dataset("MUTAG"), torch.Generator().manual_seed(0)
    targets = (torch.rand(len(data), 3, generator=chance) < 0.4).float()
    gaps = torch.rand(len(data), 3, generator=chance) < 0.2
    return replace(data, task=MultiLabel(("a", "b", "c")), targets=targets.masked_fill(gaps, torch.nan))


def weighed() -> PackedDataset:
    """Most answers are missing, and one class counts nine times as much as the other."""
    data = load_dataset("MUTAG")
    is_known = torch.rand(len(data), generator=torch.Generator().manual_seed(1)) < 0.3
    task = SingleLabel(("-1", "1"), weights=(9.0, 1.0))
    return replace(data, task=task, targets=data.targets.where(is_known, -100))


def trainer(dataset: PackedDataset, ranks: Ranks, settings: dict, train: int = TRAIN, **rest) -> Trainer:
    """In double precision: what is left between ranks is the rounding of the loss, which is taken in fp32."""
    torch.manual_seed(0)
    still = {name: 0.0 for name in full_settings("mnagt", {}) if name.endswith("dropout")}
    model = build_model("mnagt", {"dim": 16, "depth": 2} | still | settings, dataset.features, dataset.task.num_outputs)
    graphs, split = with_encodings(dataset, model.encodings), random_split(len(dataset), 0)
    split = replace(split, train=split.train[:train], valid=split.valid[:50])
    return Trainer(model.double(), graphs, split, dataset.task, ranks=ranks, **rest)


def still(dataset: PackedDataset, ranks: Ranks, *, train: int = TRAIN, **changed) -> dict[str, Tensor]:
    """Gradients of the first step, weights and statistics after the last, and figures; nothing is left to chance."""
    run = trainer(dataset, ranks, {}, train, config=replace(CONFIG, **changed))
    first: dict[str, Tensor] = {}
    step = run.optimizer.step

    def watched(closure: None = None, *, loss: Tensor | None = None) -> None:
        for name, p in run.model.named_parameters():
            if p.grad is not None:
                first.setdefault(f"gradient/{name}", p.grad.clone())
        step(closure, loss=loss)

    run.optimizer.step = watched  # type: ignore[method-assign]
    return first | outcome(run)


def outcome(run: Trainer) -> dict[str, Tensor]:
    history = run.run().history
    figures = torch.tensor([list(record.values()) for record in history], dtype=torch.float64)
    return {f"state/{name}": t for name, t in run.model.state_dict().items()} | {"figures": figures}


class StopAfter(Reporter):
    """Asks to stop once so many steps were taken; ``by`` one rank only."""

    def __init__(self, steps: int, is_asked: bool) -> None:
        self.left, self.is_asked = steps, is_asked

    def step(self, step: int, graphs: int) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0 and self.is_asked


CHANCE = {"config": replace(CONFIG, epochs=2), "settings": {"dropout": 0.3, "wl_dropout": 0.6}}


def interrupted(path: Path, ranks: Ranks) -> dict[str, Tensor]:
    """Four steps of six, the last rank asking to stop."""
    stop = StopAfter(4, ranks.rank == ranks.world_size - 1)
    run = trainer(load_dataset("MUTAG"), ranks, **CHANCE, checkpoint=path, reporter=stop, should_stop=stop)
    try:
        run.run()
    except Interrupted:
        return {"step": torch.tensor([run.at.epoch, run.at.step])}
    raise AssertionError("it did not stop")


def resumed(path: Path | None, ranks: Ranks) -> dict[str, Tensor]:
    return outcome(trainer(load_dataset("MUTAG"), ranks, **CHANCE, checkpoint=path))


def mean_of_norm(ranks: Ranks) -> dict[str, Tensor]:
    """A norm over rows of which one rank has one, and the other six."""
    from mnagt.nn.norms import BatchNorm

    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e6
    norm = nn.Sequential(BatchNorm(3, relu=True)).double()
    own = (x[:1], x[1:])[ranks.rank] if ranks.is_distributed else x
    with ranks.wrap_model(norm):
        return {"out": torch.cat(ranks.gather(norm(own).detach())), **norm.state_dict()}


STILL: dict[str, Callable[[Ranks], dict[str, Tensor]]] = {
    "odd last batch": lambda ranks: still(load_dataset("MUTAG"), ranks),
    "last batch of one graph": lambda ranks: still(load_dataset("MUTAG"), ranks, train=75),
    "missing labels": lambda ranks: still(with_gaps(), ranks),
    "missing classes, weighed": lambda ranks: still(weighed(), ranks),
    "averaged, recomputed and clipped": lambda ranks: still(
        load_dataset("MUTAG"), ranks, ema_decay=0.5, activation_checkpointing=True, clip=0.01
    ),
    "large means": mean_of_norm,
}


def with_counts(model: str, ranks: Ranks) -> dict[str, Tensor]:
    """A model of which scikit-learn fits a part, on rank 0."""
    data = load_dataset("MUTAG")
    settings = {"dim": 8, "depth": 1, "head_dim": 4} if model == "mnagt-wl" else {}
    config = RunConfig("MUTAG", model, settings, CONFIG, device="cpu")
    fitted = fit_model(config, data, random_split(len(data), 0), ranks=ranks)
    return {f"state/{name}": t for name, t in fitted.model.state_dict().items()}


def nci1(ranks: Ranks) -> dict[str, Tensor]:
    return still(load_dataset("NCI1"), ranks, train=200, batch_size=128)


def cases(folder: Path) -> dict[str, Callable[[Ranks], dict[str, Tensor]]]:
    return STILL | {
        "NCI1": nci1,
        "wl-linear": lambda ranks: with_counts("wl-linear", ranks),
        "mnagt-wl": lambda ranks: with_counts("mnagt-wl", ranks),
        "whole": lambda ranks: resumed(None, ranks),
        "interrupted": lambda ranks: interrupted(folder / "two.safetensors", ranks),
        "resumed": lambda ranks: resumed(folder / "copy.safetensors", ranks),
        "resumed from one": lambda ranks: resumed(folder / "one.safetensors", ranks),
    }


def main(folder: Path, names: list[str]) -> None:
    with join_ranks() as ranks:
        for name in names:
            found = cases(folder)[name](ranks)
            save_tensors(folder / f"{name}-{ranks.rank}.safetensors", found)
            if name == "interrupted":
                ranks.broadcast_from_rank0(
                    lambda: (folder / "copy.safetensors").write_bytes((folder / "two.safetensors").read_bytes())
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
