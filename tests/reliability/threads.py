"""One thread beside two: how far losses part, by learning rate, by Adam's epsilon and by the precision of sums.

GIN without dropout on NCI1, the same seed and batches of 128 graphs, ``--steps`` steps with one thread and with two.
Torch adds up in another order with another number of threads, so gradients differ by rounding. Adam divides a gradient
by its own size: where a gradient is nearly zero its rounding becomes a whole step. The table shows the relative
difference of the losses of the last step, the median of the seeds. Of float32 there are three variants: as the model
is; with norms in float64, statistics and gradients included; and in PyTorch's deterministic mode, where sums in norms
do not depend on the number of threads. On a busy machine ``OMP_WAIT_POLICY=passive`` saves time.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
import torch
from torch import nn

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.models.registry import build_model
from mnagt.nn.norms import BatchNorm

BATCH = 128
RATES, EPSILONS = (1e-3, 1e-4, 1e-5), (1e-8, 1e-6, 1e-4)
FLOAT32, FLOAT64 = "float32", "float64"
FLOAT64_NORMS, DETERMINISTIC = "float32, norms in float64", "float32, deterministic mode"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--dataset", help="name or path of a data set [NCI1 in the folder MNAGT_DATA]")
    parser.add_argument("--steps", type=int, default=15, help="steps [15]")
    parser.add_argument("--seeds", type=int, default=3, help="seeds [3]")
    options = parser.parse_args()
    dataset = load_dataset(options.dataset or str(common.data_file("NCI1.zip")))
    cases = [(rate, epsilon, FLOAT32) for epsilon in EPSILONS for rate in RATES]
    cases += [(rate, EPSILONS[0], precision) for precision in (FLOAT64_NORMS, DETERMINISTIC, FLOAT64) for rate in RATES]
    rows = []
    for rate, epsilon, precision in cases:
        torch.use_deterministic_algorithms(precision == DETERMINISTIC)
        apart = []
        for seed in range(options.seeds):
            one, two = (
                train_steps(dataset, build(dataset, precision, seed), rate, epsilon, options.steps, threads)
                for threads in (1, 2)
            )
            apart.append(abs(one - two) / abs(one))
        row = {"lr": rate, "epsilon": epsilon, "precision": precision, "apart": statistics.median(apart)}
        rows.append(row | {"most": max(apart)})
        print(f"{precision}, lr {rate:g}, epsilon {epsilon:g}: {row['apart']:.1e} apart, at most {max(apart):.1e}")
    figures = {"dataset": dataset.name, "steps": options.steps, "seeds": options.seeds, "rows": rows}
    common.write(options.out, figures)


def build(dataset: PackedDataset, precision: str, seed: int) -> nn.Module:
    """GIN without dropout."""
    torch.manual_seed(seed)
    model = build_model("gin", {"dropout": 0.0, "head_dropout": 0.0}, dataset.features, dataset.task.num_outputs)
    if precision == FLOAT64:
        return model.double()
    for norm in model.modules():
        if precision == FLOAT64_NORMS and isinstance(norm, BatchNorm):
            norm.double()
            norm.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(), *inputs[1:]))
            norm.register_forward_hook(lambda _, inputs, output: output.float())
    return model


def train_steps(
    dataset: PackedDataset, model: nn.Module, rate: float, epsilon: float, steps: int, threads: int
) -> float:
    """The loss of the last of so many steps."""
    set_threads(threads)
    model.train()
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=rate, eps=epsilon), torch.zeros(())
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).repeat(steps)
    for graphs in order[: steps * BATCH].split(BATCH):
        batch = dataset.batch(graphs)
        assert batch.targets is not None
        loss = dataset.task.loss(model(batch), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def set_threads(threads: int) -> None:
    """So many threads, whatever OMP_NUM_THREADS says; the process must have them when they are used."""
    torch.set_num_threads(threads)
    torch.ones(2**20).add(1)
    if torch.get_num_threads() != threads or len(list(Path("/proc/self/task").iterdir())) < threads:
        sys.exit(f"PyTorch does not use {threads} threads here: unset OMP_THREAD_LIMIT and OMP_DYNAMIC")


if __name__ == "__main__":
    main()
