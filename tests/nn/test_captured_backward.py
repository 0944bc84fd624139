"""Padded to a fixed shape, and on a GPU replayed, a batch gives the loss and gradients that it gives as it is."""

import copy
from typing import Any

import pytest
import torch
from strategies import generator
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GraphConv, GraphNorm, LayerNorm, global_add_pool, global_mean_pool

import mnagt.nn as mnn
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.padding import Shape
from mnagt.nn.captured_backward import FixedShape, _copy_into, _pad

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DIM = 6


def draw(sizes: list[int], seed: int, device: str = "cpu") -> Any:
    """A batch of PyTorch Geometric. Edges run both ways and lie in no order."""
    g, graphs = generator(seed), []
    for n in sizes:
        upper = (torch.rand(n, n, generator=g) < 0.4).triu(1)
        edge_index = (upper | upper.T).nonzero().T
        edge_index = edge_index[:, torch.randperm(edge_index.shape[1], generator=g)]
        columns = {"x": torch.randn(n, DIM, generator=g), "kind": torch.randint(5, (n,), generator=g)}
        edge_attr = torch.randn(edge_index.shape[1], 3, generator=g)
        graphs.append(
            Data(edge_index=edge_index, edge_attr=edge_attr, y=torch.randint(2, (1,), generator=g), **columns)
        )
    batch: Any = Batch.from_data_list(graphs)
    return batch.to(device)


def mlp(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, DIM), norm, nn.ReLU(), nn.Linear(DIM, DIM))


class Model(nn.Module):
    """A model with what people put into one; ``norm`` stands before its layers."""

    def __init__(self, norm: nn.Module | None = None, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(5, DIM), norm or nn.BatchNorm1d(DIM)
        gine, conv = GINEConv(mlp(nn.BatchNorm1d(DIM)), edge_dim=3), GraphConv(DIM, DIM)
        self.first = mnn.MNAGTConv(DIM, heads=2, hops=[0, 2], residual=gine, norm="batch", **settings)
        self.second = mnn.MNAGTConv(
            DIM, heads=2, hops=1, gnn=[conv], norm=(GraphNorm(DIM), nn.BatchNorm1d(DIM)), **settings
        )
        self.last, self.head_norm = nn.Linear(2 * DIM, 2), nn.BatchNorm1d(2 * DIM)

    def forward(self, data) -> torch.Tensor:
        x = self.norm(data.x + self.embedding(data.kind))
        x = self.first(x, data.edge_index, data.batch, data.edge_attr)
        x = self.second(x, data.edge_index, data.batch)
        pooled = [pool(x, data.batch, data.num_graphs) for pool in (global_add_pool, global_mean_pool)]
        return self.last(self.head_norm(torch.cat(pooled, dim=1)[: len(data.y)]))


def loss_of(model: nn.Module):
    return lambda data: nn.functional.cross_entropy(model(data)[: len(data.y)], data.y)


def compare_steps(device: str, dtype: torch.dtype, *, is_checkpointed: bool) -> mnn.CapturedBackward:
    """Steps of both ways, on batches of different size, agree in loss, gradients and running statistics."""
    rtol, atol = (1e-7, 1e-7) if dtype == torch.float64 else (2e-3, 2e-4)
    plain = Model(activation_checkpointing=is_checkpointed).to(device, dtype)
    padded = copy.deepcopy(plain)
    backward = mnn.CapturedBackward(padded, loss_of(padded))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (plain, padded)]
    for seed, sizes in enumerate([[5, 1, 70], [3, 4, 2], [11, 190, 123], [8, 5, 9, 4], [7, 1, 8]]):
        data = draw(sizes, seed, device)
        data.x, data.edge_attr = data.x.to(dtype), data.edge_attr.to(dtype)
        plain.zero_grad()
        expected = loss_of(plain)(data)
        expected.backward()
        before = {name: value.clone() for name, value in data.to_dict().items()}
        torch.testing.assert_close(backward(data), expected.detach(), rtol=rtol, atol=atol)
        assert data.num_graphs == len(sizes)
        torch.testing.assert_close(data.to_dict(), before, rtol=0, atol=0)
        for ours, theirs in zip(padded.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=rtol, atol=atol)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(padded.state_dict(), plain.state_dict(), rtol=rtol, atol=atol)
    return backward


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_padding_changes_no_loss_gradient_or_statistic(is_checkpointed):
    backward = compare_steps("cpu", torch.float64, is_checkpointed=is_checkpointed)
    assert [slots.shape.graphs for slots in backward._captured] == [3, 3, 4]


@needs_gpu
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_replayed_step_is_the_eager_one(is_checkpointed):
    backward = compare_steps("cuda", torch.float32, is_checkpointed=is_checkpointed)
    assert all(backward._captured.values())


@needs_gpu
def test_dropout_is_drawn_anew_at_each_replay_from_batches_on_the_cpu():
    model = Model(dropout=0.5).cuda()
    backward, data = mnn.CapturedBackward(model, loss_of(model)), draw([5, 1, 7], 0)
    assert len({float(backward(data)) for _ in range(5)}) == 5


@needs_gpu
def test_frozen_parameters_and_modules_in_evaluation_are_captured_anew():
    model, data = Model().cuda(), draw([5, 1, 7], 0, "cuda")
    backward = mnn.CapturedBackward(model, loss_of(model))
    losses = [float(backward(data))]
    model.eval()
    model.embedding.weight.requires_grad_(False)
    losses.append(float(backward(data)))
    assert model.embedding.weight.grad is None
    assert losses[1] == pytest.approx(loss_of(model)(data).item(), rel=1e-3) != losses[0]


@needs_gpu
def test_a_loss_that_waits_for_the_gpu_is_refused():
    model = Model().cuda()
    backward = mnn.CapturedBackward(model, lambda data: loss_of(model)(data) * float(data.x.sum()))
    with pytest.raises(InputError, match="cannot be captured as a CUDA graph: it may not wait for the GPU"):
        backward(draw([5, 1, 7], 0))


@pytest.mark.parametrize("norm", [LayerNorm(DIM, mode="graph"), GraphNorm(DIM)], ids=["layer", "graph"])
def test_modules_that_mix_padding_into_graphs_are_refused(norm):
    model = Model(norm)
    with pytest.raises(InputError, match="by way of embedding: what reads it mixes rows of all graphs"):
        mnn.CapturedBackward(model, loss_of(model))(draw([5, 1, 7], 0))


def test_a_loss_over_padding_is_refused():
    model = Model()

    def loss(data):
        return model.first(data.x, data.edge_index, data.batch, data.edge_attr).mean()

    with pytest.raises(InputError, match="by way of first"):
        mnn.CapturedBackward(model, loss)(draw([5, 1, 7], 0))


def test_a_batch_norm_without_momentum_is_refused():
    model = Model(nn.BatchNorm1d(DIM, momentum=None))
    with pytest.raises(InputError, match="norm has momentum=None"):
        mnn.CapturedBackward(model, loss_of(model))


def test_batches_share_a_shape_that_holds_them():
    model = Model()
    backward = mnn.CapturedBackward(model, loss_of(model))
    for seed in range(4):
        backward(draw([5, 1 + seed, 7], seed))
    assert len(backward._captured) == 1


@pytest.mark.parametrize("name", ["kind", "edge_attr"])
def test_a_column_that_only_some_batches_have_is_named(name):
    data, without = draw([5, 1, 7], 0), draw([5, 1, 7], 0)
    del without[name]
    graph, slots = GraphBatch.from_edges(data.edge_index, batch=data.batch), FixedShape(Shape(3, 256, 256), 64, True)
    full, less = _pad(data, graph, slots), _pad(without, graph, slots)
    with pytest.raises(InputError, match=rf"data.{name} is not there, and was \[256"):
        _copy_into(full, less)
    with pytest.raises(InputError, match=rf"data.{name} is \[256.*, and was not there"):
        _copy_into(less, full)
