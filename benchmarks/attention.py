"""Attention within graphs, forward and backward on one thread: ``attend`` against padding to the largest graph.

The peer is what GraphGPS and its kin do: ``to_dense_batch``, fused attention with a mask over the padding, and the
filled slots back. Of five ways to write that this one measured fastest. Both are checked to agree before they are
timed. Batches are real and shuffled; how much padding wastes depends on the largest graph drawn, so
several are timed and their times added up. Planning the buckets, which all layers of a model share, counts as ours.

Memory is measured in a process of its own for each: how far one forward and backward pass over the first batch
raises the peak of its resident memory, after a pass over two tiny graphs has loaded what there is to load.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import common
import torch
import torch.nn.functional as F
from torch import Tensor

from mnagt.attention.attend import attend
from mnagt.data.registry import load_dataset
from mnagt.graphs.batch import GraphBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, at import
    from torch_geometric.utils import to_dense_batch

BATCH_SIZES = {"NCI1": 256, "COLLAB": 64}
SPEED_UP = {"NCI1": 2.5, "COLLAB": 6.0}
"""The peer's time over ours, at least."""
MEMORY = 0.5
"""Our peak over the peer's, less than."""
HEADS, HEAD_DIM = 6, 32
SEED = 0


def attend_padded(q: Tensor, k: Tensor, v: Tensor, graph: GraphBatch) -> Tensor:
    (query, is_node), (key, _), (value, _) = (to_dense_batch(t.flatten(1), graph.graph_of_node) for t in (q, k, v))
    parts = (t.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2) for t in (query, key, value))
    z = F.scaled_dot_product_attention(*parts, attn_mask=is_node[:, None, None, :])
    return z.transpose(1, 2).flatten(2)[is_node].unflatten(1, (HEADS, HEAD_DIM))


VARIANTS = {"padded": attend_padded, "mnagt": attend}


def make_batch(sizes: list[int]) -> GraphBatch:
    """Graphs of these sizes, with no edges: attention does not look at them."""
    return GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), sizes)


def make_inputs(graph: GraphBatch) -> list[Tensor]:
    """Query, key and value, and the gradient of the output."""
    generator = torch.Generator().manual_seed(SEED)
    draw = [torch.randn(graph.num_nodes, HEADS, HEAD_DIM, generator=generator) for _ in range(4)]
    return [t.requires_grad_() for t in draw[:3]] + draw[3:]


def step(attention: Callable[..., Tensor], graph: GraphBatch, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Tensor:
    """Forward and backward, the gradients left where they belong."""
    q.grad = k.grad = v.grad = None
    out = attention(q, k, v, graph)
    out.backward(grad)
    return out


def check(graph: GraphBatch) -> None:
    """Both variants give the same outputs and gradients."""
    tensors = make_inputs(graph)
    results = []
    for attention in VARIANTS.values():
        out = step(attention, graph, *tensors)
        results.append([out.detach(), *(t.grad for t in tensors[:3])])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def peak_kib() -> int:
    """The peak of this process. Not ``ru_maxrss``, which a process takes over from the one that started it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB"))


def peak_mib(variant: str, sizes: list[int]) -> float:
    """How far one pass raises the peak of this process."""
    tiny, graph = make_batch([3, 5]), make_batch(sizes)
    step(VARIANTS[variant], tiny, *make_inputs(tiny))
    tensors = make_inputs(graph)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = peak_kib()
    step(VARIANTS[variant], graph, *tensors)
    return (peak_kib() - before) / 2**10


def peak_mib_apart(variant: str, sizes: list[int]) -> float:
    command = [sys.executable, __file__, "--peak", variant]
    done = subprocess.run(command, input=json.dumps(sizes), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"measuring the memory of {variant!r} failed:\n{done.stderr}")
    return float(done.stdout)


def time_variants(graph: GraphBatch, rounds: int) -> dict[str, float]:
    """Median seconds of each variant on one batch, each time one that has planned nothing yet."""
    tensors = make_inputs(graph)
    variants = {row: lambda f=f: step(f, replace(graph), *tensors) for row, f in VARIANTS.items()}
    return common.medians(variants, rounds, warm_up=1)


def measure(name: str, batches: int, rounds: int) -> dict[str, float]:
    dataset = load_dataset(common.data_file(f"{name}.zip"))
    some = torch.arange(len(dataset))
    drawn = dataset.batches(some, BATCH_SIZES[name], torch.Generator().manual_seed(SEED))
    graphs = [graph for _, (_, graph) in zip(range(batches), drawn, strict=False)]
    for graph in graphs:
        check(graph)
    took = [time_variants(graph, rounds) for graph in graphs]
    total = {row: sum(of[row] for of in took) for row in VARIANTS}
    peak = {row: peak_mib_apart(row, graphs[0].sizes.tolist()) for row in VARIANTS}
    return {
        **{f"{row}, ms": 1000 * total[row] / len(graphs) for row in VARIANTS},
        "speed_up": total["padded"] / total["mnagt"],
        **{f"{row}, peak MiB": peak[row] for row in VARIANTS},
        "memory ratio": peak["mnagt"] / peak["padded"],
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--batches", type=int, default=5, help="batches of each data set")
    parser.add_argument("--rounds", type=int, default=7, help="passes timed of each variant over each batch")
    parser.add_argument(
        "--peak", choices=VARIANTS, help="print the memory for graphs whose sizes come on standard input"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print(peak_mib(options.peak, json.load(sys.stdin)))
        return

    figures = {name: measure(name, options.batches, options.rounds) for name in BATCH_SIZES}
    print(f"{'forward and backward':28}" + "".join(f"{f'{name}, {size}':>14}" for name, size in BATCH_SIZES.items()))
    for row in figures["NCI1"]:
        print(f"{row:28}" + "".join(f"{of[row]:14.2f}" for of in figures.values()))
    settings = {"seed": SEED, "threads": 1, "heads": HEADS, "head_dim": HEAD_DIM}
    counts = {"batches": options.batches, "rounds": options.rounds}
    common.write(options.out, {**settings, **counts, "attention": figures})
    misses = []
    for name, of in figures.items():
        if of["speed_up"] < SPEED_UP[name]:
            misses.append(f"{name} {of['speed_up']:.1f}x, not {SPEED_UP[name]:.1f}x")
        if of["memory ratio"] >= MEMORY:
            misses.append(f"{name} takes {of['memory ratio']:.2f} of the memory, not under {MEMORY}")
    common.exit_if_missed(misses)


if __name__ == "__main__":
    main()
