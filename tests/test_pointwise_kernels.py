"""The benchmark of pointwise kernels replaces what it says, and nothing else, by what computes the same."""

import sys
from pathlib import Path

import pytest
import torch
from strategies import generator, random_batch

from mnagt import ops
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.ops import adamw, layer_norm, linear, mixer, norm, scale
from mnagt.tasks import SingleLabel

pytest.importorskip("torch_geometric")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import pointwise_kernels as benchmark  # type: ignore[import-not-found]
import torch_forms  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow  # most of it is the compiler
KERNELS = {
    "scale": (scale, "_scaled_add"),
    "mixer": (mixer, "_mix"),
    "layer_norm": (layer_norm, "_normalise"),
    "norm": (norm, "_normalise"),
    "linear": (linear, "_multiply"),
    "adamw": (adamw, "_update"),
}
"""A Triton kernel that each of them launches."""
SIZES = [1, 13, 2, 7, 5, 3]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def graphs() -> PackedDataset:
    batch = random_batch(SIZES, 0.15, 0)
    labels = torch.randint(0, 7, (batch.num_nodes, 1), generator=generator(0))
    built = type(batch).from_edges(
        batch.edge_index, batch.sizes, node_labels=labels, targets=torch.arange(len(SIZES)) % 2
    )
    return PackedDataset.from_batch("few", SingleLabel(("no", "yes")), built, label_counts={"node_labels": (7,)})


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel: object) -> None:
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid: object) -> object:
        self.launches += 1
        return self.kernel[grid]  # type: ignore[index]


@pytest.fixture
def counted(monkeypatch) -> dict[str, Counted]:
    """On a CPU the interpreter runs the kernels, and the optimiser is that of a GPU."""
    out = {name: Counted(getattr(module, kernel)) for name, (module, kernel) in KERNELS.items()}
    for name, (module, kernel) in KERNELS.items():
        monkeypatch.setattr(module, kernel, out[name])
    monkeypatch.setattr(ops, "precision", lambda: "tf32")
    monkeypatch.setattr(torch_forms.Compiled, "backend", "aot_eager" if DEVICE == "cpu" else "inductor")
    if DEVICE == "cpu":
        monkeypatch.setattr(ops, "is_usable", lambda device: True)
        monkeypatch.setattr("mnagt.training.trainer.adamw", flat)
        monkeypatch.setattr("mnagt.training.trainer.Trainer._is_captured", property(no, ignore), raising=False)
    return out


def flat(model, config):
    rate = torch.tensor(config.lr)
    return adamw.FlatAdamW(torch_forms.decay_groups(model, config.weight_decay), rate, clip=config.clip)


def no(_):
    return False


def ignore(_, value):
    """Nothing is captured on a CPU."""


def bench(name: str) -> benchmark.Bench:
    workload = benchmark.WORKLOADS[name]
    settings = {**workload.settings, "dim": 16, "depth": 1, "heads": 1, "dropout": 0.0}
    if workload.model == "mnagt":
        settings |= {"head_dim": 16, "wl_iterations": 0, "layer_scale": 1.0}
    few = benchmark.Workload("", workload.model, settings, 4, workload.kernels)
    split = Split(torch.arange(4), torch.tensor([4]), torch.tensor([5]))
    return benchmark.Bench(few, graphs(), split, DEVICE, "fp32")


@pytest.mark.filterwarnings("ignore")  # of torch.compile
@pytest.mark.parametrize("name", ["NCI1", "NCI1, as printed"])
def test_variants_train_alike_without_the_kernels_they_replace(name: str, counted):
    made = bench(name)
    slow = {variant for variant in made.choices if "compiled" in variant} - {"mixer compiled"}
    for variant, choice in made.choices.items():
        if variant in slow:
            continue
        for kernel in counted.values():
            kernel.launches = 0
        made.add(variant, choice)
        assert "error" not in made.records[variant]
        launched = {kernel for kernel, each in counted.items() if each.launches}
        assert launched == set(made.workload.kernels) - set(choice), variant
    ours = made.records["ours"]["losses"]
    assert ours[0] != ours[1]
    assert all(record["losses"] == pytest.approx(ours, rel=1e-3) for record in made.records.values())
