"""Attention within graphs on a GPU, forward and backward in bf16: ours, what others do, and the least it could take.

Sizes of graphs are those of real batches; what attends is random. Every variant is checked against ours, recorded as a
CUDA graph over several sets of inputs (so that none finds its own in the cache) and replayed; a figure is the median of
the replays. A variant that cannot be recorded is timed eagerly, and says so. What a batch shares among layers (masks,
tiles) is made beforehand, for all alike.

The floor is the bytes that must be moved (forward: query, key, value in, output out; backward: these three and the
gradient in, three gradients out) over the bandwidth measured here. The peers: 'padded' to the largest graph, as
GraphGPS does, all kernels in one fused call; 'bucketed' by size, our way without Triton; 'flex', torch's
flex_attention, compiled, with a mask of blocks; 'varlen', torch's FlashAttention for sequences of unlike length;
'scatter' over the list of all pairs, as SAT does.
"""

import gzip
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import common
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mnagt import ops
from mnagt.attention.attend import attend
from mnagt.data.registry import load_dataset
from mnagt.graphs.batch import GraphBatch

SEED = 0
PADDED = 9.0
"""The padded peer's time over ours, at least."""
APART = 0.05
"""A peer's outcome from ours, relative to it, at most: some round to bf16 between their steps."""
MAX_GIB = 40.0
"""A variant that would need more is left out."""
NODES = 16_384
"""Of all graphs together, where cost is measured against their size."""


@dataclass(frozen=True)
class Case:
    graphs: int
    kernels: int
    heads: int
    head_dim: int
    floors: float
    """Our time over the floor, at most."""


CASES = {
    "NCI1": Case(256, 3, 2, 64, 3.5),
    "COLLAB": Case(256, 3, 2, 64, 4.5),
    "ogbg_molhiv": Case(1024, 3, 3, 100, 3.5),
    "pypi_ast": Case(64, 3, 2, 128, 9.0),
}
Inputs = list[Tensor]
Variant = Callable[[Tensor, Tensor, Tensor], Tensor]


def draw_sizes(name: str, graphs: int) -> list[int]:
    """Nodes of the graphs of a batch drawn at random, in order of size."""
    path = common.data_file(name if name.startswith(("ogbg", "pypi")) else f"{name}.zip")
    if path.is_dir():
        with gzip.open(path / "raw" / "num-node-list.csv.gz", "rt") as file:
            sizes = np.array([int(line) for line in file])
    else:
        sizes = load_dataset(path).sizes.numpy()
    return sorted(np.random.default_rng(SEED).choice(sizes, graphs, replace=False).tolist())


def make_batch(sizes: list[int], device: str) -> GraphBatch:
    """Graphs of these sizes, with no edges: attention does not look at them."""
    return GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long, device=device), sizes)


def make_inputs(graph: GraphBatch, case: Case, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    """Query, key and value, and the gradient of the output: kept kernel by kernel, as the model has them."""
    shape = (case.kernels, graph.num_nodes, case.heads, case.head_dim)
    draw = [torch.randn(shape, generator=generator, device=generator.device).to(dtype) for _ in range(4)]
    return [t.transpose(0, 1).requires_grad_() for t in draw[:3]] + [draw[3].transpose(0, 1)]


def attend_ours(q: Tensor, k: Tensor, v: Tensor, *, graph: GraphBatch) -> Tensor:
    return attend(q, k, v, graph)


def attend_bucketed(q: Tensor, k: Tensor, v: Tensor, *, graph: GraphBatch) -> Tensor:
    return attend(q, k, v, graph, backend="bucketed")


def make_padded(graph: GraphBatch, case: Case) -> Variant:
    position = torch.arange(graph.num_nodes, device=graph.device) - graph.node_ptr[graph.graph_of_node]
    slot = graph.graph_of_node * graph.max_num_nodes + position
    slots = graph.num_graphs * graph.max_num_nodes
    is_node = torch.zeros(slots, dtype=torch.bool, device=graph.device).index_fill(0, slot, True)
    mask = is_node.view(graph.num_graphs, 1, 1, graph.max_num_nodes)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = (t.new_zeros(slots, *t.shape[1:]).index_copy(0, slot, t) for t in (q, k, v))
        parts = (t.view(graph.num_graphs, graph.max_num_nodes, -1, case.head_dim).transpose(1, 2) for t in wide)
        z = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        return z.transpose(1, 2).flatten(0, 1).index_select(0, slot).view_as(q)

    return attention


def make_flex(graph: GraphBatch, case: Case) -> Variant:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    home, nodes = graph.graph_of_node, graph.num_nodes
    mask = create_block_mask(lambda b, h, i, j: home[i] == home[j], None, None, nodes, nodes, device=str(graph.device))
    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = (t.permute(1, 2, 0, 3) for t in (q, k, v))  # kernels stand for a batch
        return compiled(*parts, block_mask=mask).permute(2, 0, 1, 3)  # type: ignore[union-attr]

    return attention


def make_varlen(graph: GraphBatch, case: Case) -> Variant:
    from torch.nn.attention.varlen import varlen_attn

    ptr, spare = graph.node_ptr.int(), -case.head_dim % 8

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (F.pad(t.flatten(1, 2), (0, spare)) for t in (q, k, v))
        query = query * ((case.head_dim + spare) / case.head_dim) ** 0.5  # it divides by the root of the wider one
        z: Any = varlen_attn(query, key, value, ptr, ptr, graph.max_num_nodes, graph.max_num_nodes)
        return z[..., : case.head_dim].reshape(q.shape)

    return attention


def make_scatter(graph: GraphBatch, case: Case) -> Variant:
    from torch_geometric.utils import scatter, softmax

    sizes = graph.sizes.to(graph.device)
    first, size = graph.node_ptr[:-1], torch.repeat_interleave(sizes, sizes)
    i = torch.repeat_interleave(size)
    j = torch.arange(len(i), device=graph.device) - (size.cumsum(0) - size)[i] + first[graph.graph_of_node][i]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        score = (q[i] * k[j]).sum(dim=-1) / case.head_dim**0.5
        weight = softmax(score, i, num_nodes=len(q))
        return scatter(weight[..., None] * v[j], i, dim=0, dim_size=len(q), reduce="sum")

    return attention


def list_variants(graph: GraphBatch, case: Case) -> Iterator[tuple[str, Variant | str]]:
    """Each variant, or why it is not there."""
    yield "ours", partial(attend_ours, graph=graph)
    heads = case.kernels * case.heads
    gib = {
        "padded": graph.num_graphs * graph.max_num_nodes**2,
        "scatter": int((graph.sizes**2).sum()) * 4 * case.head_dim,
    }
    for name, make in (
        ("padded", make_padded),
        ("flex", make_flex),
        ("varlen", make_varlen),
        ("scatter", make_scatter),
    ):
        need = gib.get(name, 0) * heads * 2 * 3 / 2**30
        if need > MAX_GIB:
            yield name, f"would need {need:.0f} GiB"
            continue
        try:
            yield name, make(graph, case)
        except (ImportError, RuntimeError) as error:
            yield name, f"not to be had here: {error}"
    yield "bucketed", partial(attend_bucketed, graph=graph)


def step(attention: Variant, given: Inputs) -> tuple[Tensor, ...]:
    """Output and gradients."""
    out = attention(*given[:3])
    return (out.detach(), *torch.autograd.grad(out, given[:3], given[3]))


def time_steps(attention: Variant, sets: list[Inputs], rounds: int) -> tuple[float, str]:
    """Median time of a step, and what kept it from being replayed from a CUDA graph, if anything did."""
    run, why_not = _capture_steps(attention, sets)
    for _ in range(3):
        run()
    took = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        took.append(1000 * start.elapsed_time(end) / len(sets))
    return statistics.median(took), why_not


def _capture_steps(attention: Variant, sets: list[Inputs]) -> tuple[Callable[[], Any], str]:
    def all_sets() -> None:
        for given in sets:
            step(attention, given)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        all_sets()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            all_sets()
    except RuntimeError as error:
        torch.cuda.synchronize()
        return all_sets, " ".join(str(error).split())[:200]
    return graph.replay, ""


def measure_bandwidth() -> float:
    """Bytes a second, read and written, of a kernel that adds one to a gibibyte."""
    x = torch.zeros(2**28, device="cuda")
    y = torch.empty_like(x)
    took = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.add(x, 1.0, out=y)
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / 1000)
    return 2 * x.nbytes / statistics.median(took)


def measure(graph: GraphBatch, case: Case, rate: float, rounds: int, names: set[str] | None = None) -> dict[str, Any]:
    """Microseconds of each variant on one batch, and the floor."""
    generator = torch.Generator(graph.device).manual_seed(SEED)
    one = 2 * graph.num_nodes * case.kernels * case.heads * case.head_dim
    sets = [make_inputs(graph, case, torch.bfloat16, generator) for _ in range(max(2, min(8, 2 * 10**8 // one)))]
    row: dict[str, Any] = {"nodes": graph.num_nodes, "largest": graph.max_num_nodes, "floor, us": 1e6 * 11 * one / rate}
    right = step(partial(attend_ours, graph=graph), sets[0])
    for name, variant in list_variants(graph, case):
        if names and name not in names:
            continue
        if isinstance(variant, str):
            row[name] = variant
            continue
        try:
            for got, wanted in zip(step(variant, sets[0]), right, strict=True):
                apart = float((got - wanted).float().norm() / wanted.float().norm())
                assert apart < APART, f"{name} differs by {apart:.3f}"
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step(variant, sets[0])
            row[f"{name}, peak MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
            row[f"{name}, us"], why_not = time_steps(variant, sets, rounds)
            if why_not:
                row[name] = f"timed eagerly: {why_not}"
        except (RuntimeError, NotImplementedError) as error:
            row[name] = f"failed: {' '.join(str(error).split())[:200]}"
        torch.cuda.empty_cache()
    return row


def measure_sizes(rate: float, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cost against the size of graphs, as many of them as have ``NODES`` nodes together; and against their number."""
    case, names = CASES["NCI1"], {"ours", "padded", "varlen"}
    for size in (30, 100, 300, 1000, 2000, 5000):
        yield f"{size} nodes each", measure(make_batch([size] * (NODES // size), "cuda"), case, rate, rounds, names)
    drawn = draw_sizes("NCI1", 4096)
    for graphs in (16, 64, 256, 1024, 4096):
        spread = sorted(size for size, _ in zip(cycle(drawn[:: 4096 // graphs]), range(graphs), strict=False))
        yield f"{graphs} graphs of NCI1", measure(make_batch(spread, "cuda"), case, rate, rounds, names)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="replays timed of each variant")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="batches [all]")
    parser.add_argument("--sweep", action="store_true", help="also measure cost against size and number of graphs")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    if reason := ops.why_not():
        raise SystemExit(f"our kernels do not run here: {reason}")
    rate = measure_bandwidth()
    print(f"{torch.cuda.get_device_name()}, {rate / 1e12:.2f} TB/s")
    figures: dict[str, dict[str, Any]] = {"attention": {}, "sweep": {}}
    gpu = {"gpu": torch.cuda.get_device_name(), "bytes_per_second": rate, "dtype": "bfloat16", "seed": SEED}
    for kind, name, row in measure_all(options, rate):
        print(
            f"\n{name}: {row['nodes']} nodes, largest {row['largest']}; {row['ours, us'] / row['floor, us']:.2f} floors"
        )
        for key, value in row.items():
            if key.endswith(", us"):
                print(f"  {key.removesuffix(', us'):10} {value:10.1f} us {value / row['ours, us']:8.2f}x", flush=True)
            elif isinstance(value, str):
                print(f"  {key:10} {value}")
        figures[kind][name] = row
        common.write(options.out, {**gpu, "rounds": options.rounds, **figures})
    common.exit_if_missed([line for name, row in figures["attention"].items() for line in list_misses(name, row)])


def measure_all(options: Any, rate: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What is asked for, measured one by one."""
    for name in options.only:
        graph = make_batch(draw_sizes(name, CASES[name].graphs), "cuda")
        yield "attention", name, measure(graph, CASES[name], rate, options.rounds)
    if options.sweep:
        for name, row in measure_sizes(rate, options.rounds):
            yield "sweep", name, row


def list_misses(name: str, row: dict[str, Any]) -> Iterator[str]:
    """A line for each target that a batch misses."""
    floors, times = row["ours, us"] / row["floor, us"], row.get("padded, us", float("inf")) / row["ours, us"]
    if floors > CASES[name].floors:
        yield f"{name} {floors:.1f} floors, not {CASES[name].floors}"
    if times < PADDED:
        yield f"{name} {times:.1f}x padded, not {PADDED:.0f}x"


if __name__ == "__main__":
    main()
