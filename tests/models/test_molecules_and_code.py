"""Every model trains on the real data sets of OGB's layout: nine and three columns, or four kinds of edges."""

import pytest
import torch
from data import ogb_files

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.models.registry import MODELS, build_model
from mnagt.nn.readouts import Concat
from mnagt.tasks import SubTokens, Task

GRAPHS = 7
TRAINED = [name for name, entry in MODELS.items() if not entry.is_fitted_by_sklearn]
"""Models that learn by gradients."""


@pytest.fixture(scope="module", params=["ogbg_moltox21", "ogbg_molesol", "pypi_ast"])
def some(request, data_root, tmp_path_factory) -> tuple[PackedDataset, Task]:
    """The beginning of a data set, and its task as training finds it."""
    path = tmp_path_factory.mktemp("some") / request.param
    dataset = load_dataset(ogb_files.beginning(data_root / request.param, path, graphs=200))
    return dataset, dataset.task.fit(dataset.targets)


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRAINED)
def test_steps_lower_the_loss_and_thousands_of_words_come_from_one_map(name, some):
    dataset, task = some
    batch = dataset.batch(torch.arange(len(dataset))[dataset.sizes < 40][:GRAPHS])
    torch.manual_seed(0)
    if MODELS[name].reads not in (None, dataset.features):
        pytest.skip(f"{name} reads molecules")
    model = build_model(name, {}, dataset.features, task.num_outputs)
    maps = [each for each in model.head.modules() if isinstance(each, torch.nn.Linear)]
    assert len(maps) == (1 if isinstance(task, SubTokens) or name.endswith("-virtual") else 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    losses = []
    for _ in range(4):
        torch.manual_seed(0)  # the same dropout again
        loss = task.loss(model(batch), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[1:]) < losses[0]
    assert len(next(iter(task.decode(model.eval()(batch).detach()).values()))) == GRAPHS


@pytest.mark.real_data
def test_answers_can_be_learned_by_heart(some):
    dataset, task = some
    batch = dataset.batch(torch.arange(len(dataset))[dataset.sizes < 40][:GRAPHS])
    torch.manual_seed(0)
    model = build_model("gin-virtual", {"depth": 2}, dataset.features, task.num_outputs)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    first = task.scores(model(batch).detach(), batch.targets)[task.metric]
    for _ in range(60):
        loss = task.loss(model(batch), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last = task.scores(model(batch).detach(), batch.targets)[task.metric]
    assert task.is_better(last, first)
    assert last > 0.8 if task.higher_is_better else last < 0.5


@pytest.mark.real_data
def test_what_one_map_answers_from_is_normalised(some):
    dataset, task = some
    model = build_model("mnagt", {"wl_iterations": 0}, dataset.features, task.num_outputs)
    assert isinstance(model.readout, Concat) == isinstance(task, SubTokens)
    if isinstance(model.readout, Concat):
        vectors = model.embed(dataset.batch(torch.arange(len(dataset))[dataset.sizes < 40]))
        torch.testing.assert_close(vectors.mean(dim=0), torch.zeros(model.readout.dim), atol=1e-4, rtol=0)
        torch.testing.assert_close(vectors.var(dim=0, correction=0), torch.ones(model.readout.dim), atol=0.1, rtol=0)
