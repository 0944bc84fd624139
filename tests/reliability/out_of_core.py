"""What it costs to train from mapped files rather than from memory: an epoch of GIN on NCI1 and on COLLAB.

``MNAGT_DATA`` names the folder that holds NCI1.zip and COLLAB.zip. GIN is the cheapest model there is, and so the one
for which reading weighs most. The data sets are written as folders and mapped; an epoch is taken in memory, mapped in a
full random order, mapped by blocks as a data set larger than memory is, and by blocks with the files put out of the
system's cache before each epoch, so that every page comes from the disk. Held against: 15% over memory, for all.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
import torch
from torch import Tensor

from mnagt.data.memmap import BLOCK, open_packed, write_packed
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.models.registry import build_model

BATCH_SIZE, MAX_TIMES = 256, 1.15


def in_memory(dataset: PackedDataset) -> PackedDataset:
    tensors = {f.name: value.clone() for f in fields(dataset) if isinstance(value := getattr(dataset, f.name), Tensor)}
    return replace(dataset, **tensors)


def put_out(folder: Path) -> None:
    """Let the system forget the pages of all files in ``folder``, which nobody may have mapped."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_from_disk() -> int:
    """Bytes that this process has had the system read."""
    (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("read_bytes")]
    return int(line.split()[1])


def epochs(opened: Callable[[], PackedDataset], processor: list[float]) -> Callable[[], None]:
    """Epochs of training, all in the same order; the seconds that the processor works go to ``processor``."""
    first = opened()
    torch.manual_seed(0)
    model = build_model("gin", {}, first.features, first.task.num_outputs).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    del first

    def taken() -> None:
        start = time.process_time()
        dataset, chance = opened(), torch.Generator().manual_seed(0)
        for _, batch in dataset.batches(torch.arange(len(dataset)), BATCH_SIZE, chance):
            assert batch.targets is not None
            loss = dataset.task.loss(model(batch), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        processor.append(time.process_time() - start)

    return taken


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each variant [5]")
    parser.add_argument("--graphs", type=int, default=4000, help="of each data set, at most [4000]")
    parser.add_argument("--folder", type=Path, help="where the data sets are written [a temporary folder]")
    options = parser.parse_args()
    figures, missed = {}, []
    for name in ("NCI1", "COLLAB"):
        whole = load_dataset(common.data_file(f"{name}.zip"))
        some = whole.batch(torch.arange(min(len(whole), options.graphs)))
        dataset = in_memory(PackedDataset.from_batch(name, whole.task, some, label_counts=whole.label_counts))
        block = max(1, BLOCK * len(dataset) // dataset.nbytes)
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            warm, cold = Path(scratch) / "warm", Path(scratch) / "cold"
            mapped = write_packed(warm, [dataset])
            write_packed(cold, [dataset], block=block)
            read: list[int] = []

            def from_disk(cold: Path = cold, read: list[int] = read) -> PackedDataset:
                put_out(cold)
                read.append(read_from_disk())
                return open_packed(cold, check=False)

            opened = {
                "in memory": lambda dataset=dataset: dataset,
                "mapped": lambda mapped=mapped: mapped,
                "mapped, by blocks": lambda mapped=mapped, block=block: replace(mapped, block=block),
                "from disk, by blocks": from_disk,
            }
            processor: dict[str, list[float]] = {kind: [] for kind in opened}
            variants = {kind: epochs(each, processor[kind]) for kind, each in opened.items()}
            seconds = common.medians(variants, options.rounds, warm_up=1)
            read.append(read_from_disk())
        figures[name] = {
            "graphs": len(dataset),
            "mib": dataset.nbytes / 2**20,
            "block": block,
            "seconds": seconds,
            "times": {kind: taken / seconds["in memory"] for kind, taken in seconds.items()},
            "processor_seconds": {kind: median(taken[1:]) for kind, taken in processor.items()},
            "mib_read_an_epoch": (read[-1] - read[1]) / 2**20 / (len(read) - 2),
        }
        for kind, times in figures[name]["times"].items():
            worked = figures[name]["processor_seconds"][kind]
            told = f"{seconds[kind]:7.2f} s ({worked:.2f} of the processor)  {times:5.2f} times in memory"
            print(f"{name:8} {kind:22} {told}", flush=True)
            missed += [f"{name} {kind}: {times:.2f} times"] * (times > MAX_TIMES)
        print(
            f"{name:8} {figures[name]['mib']:.0f} MiB, of which {figures[name]['mib_read_an_epoch']:.0f} read an epoch"
        )
    common.write(options.out, {"model": "gin", "figures": figures})
    common.exit_if_missed(missed)


if __name__ == "__main__":
    main()
