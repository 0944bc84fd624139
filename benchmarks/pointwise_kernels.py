"""The captured training step with our pointwise and reduction kernels, and with each of them replaced by PyTorch.

The default model on NCI1 and on molhiv, and the model as printed on NCI1, train in bf16 by their ``Trainer``, whose
steps are captured as CUDA graphs. Each variant replaces one kernel, or several:

- 'eager': the twin in ``ops/functional.py``; of AdamW, ``ClippedAdamW``, which is torch's fused AdamW.
- 'compiled': the twin through ``torch.compile``, rows dynamic.
- linear, 'products': our autograd functions, with torch's products in place of the Triton kernels.
- adamw, 'copies': ``ClippedAdamW`` and copies of the parameters in bf16; 'flat' and 'flat compiled': parameters side by
  side in one tensor as now, updated by torch's operations.

An epoch is the same batches for all, in the same order. Variants take turns; a figure is the median over rounds, with
its quartiles, and the ratio to ours is the median of ratios within a round.
Variants for which no time is left are recorded as such.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import common
import torch
from epoch import SEED, Ours, draw_batches, time_epoch
from torch_forms import Patch, list_forms

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.data.splits import Split
from mnagt.devices import device_name
from mnagt.models.registry import build_model
from mnagt.runs.config import TrainConfig
from mnagt.training.fit_model import fit_preprocessing

LIMIT = 1.1
"""A kernel is worth keeping where the best step without it takes at least this multiple of ours."""
Precision = Literal["fp32", "tf32", "bf16"]
Choice = Mapping[str, str]
"""The form of each kernel that is replaced."""


@dataclass(frozen=True)
class Workload:
    """A model, the graphs it trains on, and the kernels that its step launches."""

    data: str
    model: str
    settings: Mapping[str, Any]
    batch_size: int
    kernels: tuple[str, ...]


WORKLOADS = {
    "NCI1": Workload("NCI1.zip", "mnagt", {}, 256, ("scale", "mixer", "norm", "linear", "adamw")),
    "molhiv": Workload("ogbg_molhiv", "mnagt", {}, 512, ("scale", "mixer", "norm", "linear", "adamw")),
    "NCI1, as printed": Workload(
        "NCI1.zip", "mnagt-paper", {"dropout": 0.0}, 256, ("mixer", "layer_norm", "linear", "adamw")
    ),
}
DEVICE = "cuda"
BATCHES = 15
"""Steps of an epoch."""
FIRST_ROUNDS = 5
"""Rounds of a variant and ours alone, as soon as it is built: figures for when time runs out."""


def list_choices(kernels: tuple[str, ...], forms: Mapping[str, Mapping[str, Patch]]) -> dict[str, Choice]:
    """The variants of a workload: ours, each kernel in each form, and all kernels at once."""
    one = {f"{name} {form}": {name: form} for name in kernels for form in forms[name]}
    last = {"linear compiled": one.pop("linear compiled")}  # takes longest to compile
    eager = {name: {"linear": "products", "adamw": "copies"}.get(name, "eager") for name in kernels}
    compiled = {name: {"linear": "products", "adamw": "flat compiled"}.get(name, "compiled") for name in kernels}
    return {"ours": {}, **one, "all eager": eager, "all compiled": compiled, **last}


class Variant(Ours):
    """Epochs of the same batches, with ``patches`` applied."""

    def __init__(self, patches: list[Patch], *args: Any) -> None:
        self.patches = patches
        with self._apply_patches():
            super().__init__(*args)

    def epoch(self) -> float:
        self.trainer.at.epoch = 0
        with self._apply_patches():
            return super().epoch()

    @contextmanager
    def _apply_patches(self) -> Iterator[None]:
        with ExitStack() as stack:
            for each in self.patches:
                stack.enter_context(each())
            yield


class Bench:
    """The variants of a workload that run, and what is known of each."""

    def __init__(
        self, workload: Workload, dataset: PackedDataset, split: Split, device: str, precision: Precision = "bf16"
    ) -> None:
        self.workload, self.dataset, self.split, self.device = workload, dataset, split, device
        self.precision: Precision = precision
        self.forms = list_forms()
        self.choices = list_choices(workload.kernels, self.forms)
        self.epochs: dict[str, Callable[[], float]] = {}
        self.records: dict[str, dict[str, Any]] = {}

    def make(self, choice: Choice) -> Variant:
        workload = self.workload
        torch.manual_seed(SEED)
        features, outputs = self.dataset.features, self.dataset.task.num_outputs
        model = build_model(workload.model, dict(workload.settings), features, outputs)
        dataset = fit_preprocessing(model, self.dataset, self.split.train)
        config = TrainConfig(
            epochs=999, batch_size=workload.batch_size, precision=self.precision, seed=SEED, checkpoint_seconds=1e9
        )
        patches = [self.forms[name][form] for name, form in choice.items()]
        return Variant(patches, model, dataset, self.split, config, self.device)

    def add(self, name: str, choice: Choice) -> None:
        """Build the variant and capture its steps, or record why that failed."""
        record = self.records[name] = {"replaced": dict(choice)}
        start = time.perf_counter()
        try:
            made = self.make(choice)
            epoch = time_epoch(made, self.device)
            record["losses"] = [epoch(), epoch()]
            record["is_captured"] = made.trainer._is_captured
            self.epochs[name] = epoch
        except Exception as error:
            record["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:600]
        record["build_seconds"] = time.perf_counter() - start

    def measure(self, names: Iterable[str], rounds: int) -> None:
        """Time these variants in turns, and record medians, quartiles and ratios to ours."""
        steps = len(self.split.train) // self.workload.batch_size
        seconds = common.take_turns({name: self.epochs[name] for name in names}, rounds, warm_up=1)
        for name, taken in seconds.items():
            low, middle, high = (1000 * value / steps for value in statistics.quantiles(taken, n=4))
            ratio = statistics.median(a / b for a, b in zip(taken, seconds["ours"], strict=True))
            self.records[name] |= {"ms": middle, "quartiles": [low, high], "to_ours": ratio, "rounds": rounds}

    def choose_cheap(self) -> Choice:
        """The best form of each kernel without which the step takes less than ``LIMIT`` times ours."""
        out: dict[str, tuple[float, str]] = {}
        for record in self.records.values():
            if len(record["replaced"]) == 1 and record.get("to_ours", LIMIT) < LIMIT:
                ((kernel, form),) = record["replaced"].items()
                out[kernel] = min(out.get(kernel, (LIMIT, "")), (record["to_ours"], form))
        return {kernel: form for kernel, (_, form) in out.items()}


def read(workload: Workload) -> tuple[PackedDataset, Split]:
    return draw_batches(load_dataset(common.data_file(workload.data)), workload.batch_size, BATCHES)


def prepare() -> None:
    """Settings of a process that compiles or measures."""
    torch._dynamo.config.recompile_limit = 64
    torch.set_float32_matmul_precision("high")


def main() -> None:
    start = time.monotonic()
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="epochs timed of each variant")
    parser.add_argument("--seconds", type=float, default=142.0, help="no variant is begun later than this")
    options = parser.parse_args()
    data = {name: read(workload) for name, workload in WORKLOADS.items()}
    print(f"read after {time.monotonic() - start:.0f} s", flush=True)
    prepare()
    figures: dict[str, Any] = {}
    shared = {"device": device_name(torch.device(DEVICE)), "precision": "bf16", "seed": SEED, "steps": BATCHES}
    for number, (name, workload) in enumerate(WORKLOADS.items()):
        now = time.monotonic()
        until = now + (start + options.seconds - now) / (len(WORKLOADS) - number)
        bench = Bench(workload, *data[name], DEVICE)
        figures[name] = {"batch_size": workload.batch_size, "model": workload.model, "variants": bench.records}
        figures[name]["settings"] = dict(workload.settings)

        def run(variant: str, choice: Choice, bench: Bench = bench, until: float = until) -> None:
            if time.monotonic() > until - 5:
                bench.records[variant] = {"replaced": dict(choice), "error": "no time left"}
                return
            bench.add(variant, choice)
            if variant in bench.epochs:
                bench.measure(dict.fromkeys(("ours", variant)), FIRST_ROUNDS)
            common.write(options.out, {**shared, "workloads": figures})

        for variant, choice in bench.choices.items():
            run(variant, choice)
        if cheap := bench.choose_cheap():
            run("all that cost little", cheap)
        if time.monotonic() < until:
            bench.measure(bench.epochs, options.rounds)
        common.write(options.out, {**shared, "workloads": figures})
        print(format_table(name, bench.records), f"after {time.monotonic() - start:.0f} s\n", flush=True)


def format_table(name: str, records: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"{name:24}{'ms a step':>12}{'quartiles':>20}{'to ours':>10}"]
    for variant, record in records.items():
        if "ms" in record:
            low, high = record["quartiles"]
            spread = f"{low:.3f} to {high:.3f}"
            note = "" if record["is_captured"] else "  not captured"
            lines.append(f"{variant:24}{record['ms']:12.3f}{spread:>20}{record['to_ours']:10.3f}{note}")
        if "error" in record:
            lines.append(f"{variant:24}  {record['error'][:120]}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
