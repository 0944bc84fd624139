"""One thread beside two: how far losses part, by learning rate and by Adam's epsilon.

GIN without dropout, the same seed and batches of 128 graphs, ``--steps`` steps with one thread and with two. Torch adds
up in another order with another number of threads, so gradients differ by rounding. Adam divides a gradient by its own
size: where a gradient is nearly zero its rounding becomes a whole step. The table shows the relative difference of the
losses of the last step.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.models.registry import build_model

BATCH = 128
RATES, EPSILONS = (1e-3, 1e-4, 1e-5), (1e-8, 1e-6, 1e-4)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--dataset", default="MUTAG", help="name or path of a data set [MUTAG]")
    parser.add_argument("--steps", type=int, default=15, help="steps [15]")
    options = parser.parse_args()
    dataset = load_dataset(options.dataset)
    cases = [(rate, epsilon, torch.float32) for epsilon in EPSILONS for rate in RATES]
    cases += [(rate, EPSILONS[0], torch.float64) for rate in RATES]
    rows = []
    for rate, epsilon, dtype in cases:
        one, two = (train_steps(dataset, rate, epsilon, dtype, options.steps, threads) for threads in (1, 2))
        rows.append({"lr": rate, "epsilon": epsilon, "dtype": str(dtype), "apart": abs(one - two) / abs(one)})
        print(f"{dtype}  lr {rate:g}  epsilon {epsilon:g}  losses {rows[-1]['apart']:.1e} apart ({one:.4f})")
    common.write(options.out, {"dataset": dataset.name, "steps": options.steps, "rows": rows})


def train_steps(
    dataset: PackedDataset, rate: float, epsilon: float, dtype: torch.dtype, steps: int, threads: int
) -> float:
    """The loss of the last of so many steps."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = build_model("gin", {"dropout": 0.0, "head_dropout": 0.0}, dataset.features, dataset.task.num_outputs)
    model = model.to(dtype).train()
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


if __name__ == "__main__":
    main()
