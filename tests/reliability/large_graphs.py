"""What a training step on a single large graph takes: seconds and memory, by nodes and by kind of attention.

The default model, forward and backward, on rings in which each node knows four others; every figure is of a process of
its own with one thread. On a CPU seconds are of the processor, so that what else the machine does counts for little,
and memory is the growth of the process at its peak; on a GPU they are of the clock, after a first step that compiles,
and what tensors take at the peak. (glibc keeps freed blocks of up to 32 MiB, which is why 100,000 nodes can take
more than 200,000; MALLOC_MMAP_THRESHOLD_=1048576 makes it give them back, for more time.) Held against: 20,000 nodes
within 4 GiB, and memory that grows at most half as fast again as the nodes.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]

KINDS = {
    "softmax": ({}, (1000, 2000, 5000, 10_000, 20_000)),
    "softmax with dropout": ({"attention_dropout": 0.1}, (1000, 2000, 5000)),
    "linear": ({"attention": "linear"}, (1000, 5000, 20_000, 50_000)),
    "linear, layers worked out again": (
        {"attention": "linear", "activation_checkpointing": True},
        (5000, 20_000, 50_000, 100_000, 200_000),
    ),
}
MAX_GIB, SLACK = 4, 1.5


def step(nodes: int, settings: dict, device: str) -> dict[str, float]:
    import torch

    from mnagt.graphs.batch import GraphBatch
    from mnagt.graphs.features import Features
    from mnagt.models.registry import build_model
    from mnagt.nn.activation_checkpointing import CheckpointedModel

    def one(nodes: int) -> None:
        place = torch.arange(nodes)
        ends = torch.cat([torch.stack([place, place.roll(far)]) for far in (1, 2, -1, -2)], dim=1)
        model(GraphBatch.from_edges(ends, [nodes]).to(device)).sum().backward()

    torch.manual_seed(0)
    is_checkpointed = settings.pop("activation_checkpointing", False)
    model = build_model("mnagt", settings, Features(), 2).train().to(device)
    model = CheckpointedModel(model) if is_checkpointed else model
    if device != "cpu":
        one(nodes)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        one(nodes)
        torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - start, "mib": torch.cuda.max_memory_allocated() / 2**20}
    one(64)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    one(nodes)
    seconds = time.process_time() - start
    return {"seconds": seconds, "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--kind", choices=KINDS, help="only this; others stay as they are in --out")
    parser.add_argument("--nodes", type=int, default=200_000, help="leave out larger graphs [200000]")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--step", nargs=2, metavar=("NODES", "SETTINGS"), help="one figure, in this process")
    options = parser.parse_args()
    if options.step:
        print(json.dumps(step(int(options.step[0]), json.loads(options.step[1]), options.device)))
        return
    figures: dict[str, dict[str, dict[str, float]]] = {}
    if options.kind and options.out:
        figures = json.loads(options.out.read_text())["figures"]
    for kind, (settings, sizes) in KINDS.items():
        if options.kind not in (None, kind):
            continue
        for nodes in (size for size in sizes if size <= options.nodes):
            words = [sys.executable, __file__, "--device", options.device, "--step", str(nodes), json.dumps(settings)]
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            told = json.loads(subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout)
            figures.setdefault(kind, {})[str(nodes)] = told
            print(f"{kind:32} {nodes:>8,} nodes  {told['seconds']:8.2f} s  {told['mib']:8.0f} MiB", flush=True)
            common.write(options.out, {"model": "mnagt", "device": options.device, "figures": figures})
    missed = []
    for kind, found in figures.items():
        told = {int(nodes): each["mib"] for nodes, each in found.items()}
        if (mib := told.get(20_000, 0)) > 1024 * MAX_GIB:
            missed.append(f"{kind}: {mib:.0f} MiB")
        small, large = min((n for n in told if n >= 5000), default=max(told)), max(told)
        growth = told[large] / told[small] / (large / small)
        missed += [f"{kind}: memory grew {growth:.2f} times as fast as the nodes"] * (growth > SLACK)
    common.exit_if_missed(missed)


if __name__ == "__main__":
    main()
