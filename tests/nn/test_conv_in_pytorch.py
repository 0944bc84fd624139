"""Layers do what PyTorch asks of modules: autocast, torch.compile, torch.export and distributed training."""

import socket
import subprocess
import sys

import pytest
import torch
from strategies import generator, random_batch
from torch import nn

import mnagt.nn as mnn
from mnagt.errors import InputError

HEADER = """
import torch
from torch import nn
import mnagt.nn as mnn

def inputs(sizes, seed):
    g = torch.Generator().manual_seed(seed)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    is_edge = (torch.rand(len(batch), len(batch), generator=g) < 0.4) & (batch[:, None] == batch)
    return torch.randn(len(batch), 6, generator=g), is_edge.nonzero().T.contiguous(), batch

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.one, self.other = (mnn.MNAGTConv(6, heads=2, hops=[0, 2]) for _ in range(2))

    def forward(self, x, edge_index, batch):
        x = self.one(self.first(x).tanh(), edge_index, batch)
        return self.last(self.other(x.relu(), edge_index, batch).relu())
"""


def run(program: str) -> None:
    """Run in a process of its own, where no shapes are checked: what is traced has none."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", HEADER + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_compiled_model_is_the_same_with_one_graph_break_a_layer():
    run("""
model = Model()
compiled = torch.compile(model, backend="aot_eager")
for seed, sizes in enumerate([[5, 1, 7], [3, 4], [2, 2, 2, 6]]):
    args = inputs(sizes, seed)
    outs = [each(*args) for each in (compiled, model)]
    torch.testing.assert_close(*outs)
    grads = [torch.autograd.grad(out.square().sum(), model.first.weight)[0] for out in outs]
    torch.testing.assert_close(*grads)
torch._dynamo.reset()
explained = torch._dynamo.explain(model)(*inputs([5, 1, 7], 0))
assert explained.graph_break_count == 2, explained.break_reasons
q = torch.randn(5, 2, 3)
compiled = torch.compile(lambda q: mnn.attend(q, q, q) + 1, backend="aot_eager")
torch.testing.assert_close(compiled(q), mnn.attend(q, q, q) + 1)
""")


def test_an_exported_model_takes_graphs_of_any_size():
    run("""
nodes, edges = torch.export.Dim("nodes"), torch.export.Dim("edges")
model = Model().eval()
shapes = ({0: nodes}, {1: edges}, {0: nodes})
program = torch.export.export(model, inputs([5, 1, 4, 2, 7, 3], 0), dynamic_shapes=shapes).module()
for seed, sizes in enumerate([[1], [1, 1], [1, 11, 3, 1, 6], [23]]):
    args = inputs(sizes, seed)
    torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-5)
""")


def test_eigenpairs_are_refused_by_an_export():
    run("""
import pytest
conv = mnn.MNAGTConv(6, heads=2, eigenpairs=4).eval()
with pytest.raises(ValueError, match="eigenpairs cannot be computed in an exported program"):
    torch.export.export(conv, inputs([5, 1, 4], 0))
""")


def test_arguments_of_the_wrong_kind_are_named():
    run("""
import pytest
from mnagt.errors import InputError
conv, (x, edges, batch) = mnn.MNAGTConv(6, heads=2), inputs([5, 1, 4], 0)
adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (10, 10)).to_sparse_csr()
for args, message in [
    ((x, edges.T, batch), r"edge_index must be \\[2, edges\\] of whole numbers, got .* of int64"),
    ((x, edges.float(), batch), "edge_index must be .* of float32"),
    ((x, adjacency, batch), "in a sparse matrix; for adj_t give to_edge_index"),
    ((x, edges, batch.float()), r"batch must be \\[nodes\\] of whole numbers, got \\[10\\] of float32"),
    ((x, edges, batch.tolist()), "batch must be .* got a list$"),
    ((x[:, :5], edges, batch), r"x must be \\[nodes, 6\\] of floats, got \\[10, 5\\] of float32"),
    ((x.long(), edges, batch), "x must be .* of int64"),
]:
    with pytest.raises(InputError, match=message):
        conv(*args)
for settings, message in [
    ({"hops": [0.5]}, "hops must be a whole number from 0"),
    ({"variant": "softest"}, "no 'softest' attention; there are: softmax, cosine, linear"),
    ({"projections": "both"}, "no 'both' attention; there are: separate, shared"),
]:
    with pytest.raises(InputError, match=message):
        mnn.MNAGTConv(6, heads=2, **settings)
""")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_outputs_are_near_those_in_single_precision(dtype):
    graph = random_batch([5, 1, 7], 0.4, seed=0)
    x = torch.randn(13, 6, generator=generator(1))
    torch.manual_seed(0)
    model = mnn.GraphTransformer(6, 8, 2, 3, heads=2, norm="batch")
    expected = model(x, graph.edge_index, graph.graph_of_node)
    with torch.autocast("cpu", dtype):
        out = model(x, graph.edge_index, graph.graph_of_node)
    torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.05)
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_ranks_of_a_distributed_training_share_their_gradients(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = f"""
import sys, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=rank, world_size=2)
parts = [inputs([5, 1, 7], 0), inputs([3, 4], 1)]
model = Model()
ddp = DistributedDataParallel(model)
ddp(*parts[rank]).square().mean().backward()
alone = Model()
(sum(alone(*part).square().mean() for part in parts) / 2).backward()
for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad)
dist.destroy_process_group()
"""
    ranks = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", HEADER + program, str(rank)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=300)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    conv = mnn.MNAGTConv(4, heads=2, hops=[0, 1], residual=nn.Linear(4, 4)).double()
    graph = random_batch([3, 1, 4], 0.5, seed=0)
    x = torch.randn(8, 4, generator=generator(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: conv(x, graph.edge_index, graph.graph_of_node), (x,))


def test_second_derivatives_are_those_of_finite_differences_or_an_error():
    torch.manual_seed(0)
    settings = {"heads": 2, "hops": [0, 1], "norm": "batch"}
    conv, exact = (mnn.MNAGTConv(4, **settings, backend=backend).double() for backend in ("auto", "reference"))
    graph = random_batch([3, 1, 4], 0.5, seed=0)
    x = torch.randn(8, 4, generator=generator(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: exact(x, graph.edge_index, graph.graph_of_node), (x,))
    with pytest.raises(InputError, match=r"differentiated once; .* give layers backend='reference'"):
        torch.autograd.grad(conv(x, graph.edge_index, graph.graph_of_node).sum(), x, create_graph=True)
