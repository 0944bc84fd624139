"""A real service on a real port, for models that have learned nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mnagt.data.readers.code_trees import MASK
from mnagt.data.readers.smiles import FEATURES, read_smiles
from mnagt.data.splits import Split
from mnagt.graphs.features import Columns, Features
from mnagt.inference.domain import fit_domain
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model, full_settings
from mnagt.tasks import UNKNOWN, EdgeRegression, Mixed, NodeRegression, Regression, SingleLabel, SubTokens, Task

uvicorn = pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

SMALL = {"depth": 2, "dim": 12, "heads": 1, "head_dim": 8, "wl_vocabulary_size": 64}


def make_untrained(name: str, features: Features, task: Task, vocabularies: dict | None = None) -> TrainedModel:
    torch.manual_seed(0)
    model = build_model(name, SMALL if name == "mnagt" else {}, features, task.num_outputs, task.level).eval()
    settings = full_settings(name, SMALL if name == "mnagt" else {})
    return TrainedModel(model, task, name, settings, {"dataset": "toys"}, vocabularies or {})


@pytest.fixture(scope="session")
def molecules() -> TrainedModel:
    return make_untrained("mnagt", FEATURES, SingleLabel(("inactive", "active")))


@pytest.fixture(scope="session")
def charges() -> TrainedModel:
    """Predicts a number for each atom, and how far molecules are from chains."""
    trained = make_untrained("mnagt", FEATURES, NodeRegression(("charge",), mean=(0.1,), std=(0.3,)))
    dataset, order = read_smiles(["C" * n + end for n in range(1, 13) for end in "ONF"]).graphs, torch.arange(36)
    return replace(trained, domain=fit_domain(trained.model, dataset, Split(order[:20], order[20:34], order[34:])))


@pytest.fixture(scope="session")
def lengths() -> TrainedModel:
    """Predicts a number for each bond."""
    return make_untrained("mnagt", FEATURES, EdgeRegression(("length",), mean=(1.4,), std=(0.1,)))


@pytest.fixture(scope="session")
def plain() -> TrainedModel:
    """Reads a categorical column with names and a continuous one of nodes, and a categorical one of edges."""
    words = {"node_labels/0": ("C", "N", "O")}
    return make_untrained("mnagt", Features(Columns((3,), 1), Columns((2,))), SingleLabel(("a", "b")), words)


@pytest.fixture(scope="session")
def error_model() -> TrainedModel:
    """Predicts a column of classes called error, and one of numbers."""
    tasks = (SingleLabel(("small", "large")), Regression(("logP",), mean=(2.0,), std=(3.0,)))
    return make_untrained("mnagt", FEATURES, Mixed(("error", "logP"), tasks))


@pytest.fixture(scope="session")
def namer() -> TrainedModel:
    """Names functions."""
    types = (UNKNOWN, "Module", "FunctionDef", "arguments", "Return", "Name")
    words = {"node_labels/0": types, "node_labels/1": ("__NONE__", UNKNOWN, MASK)}
    features = Features(Columns((len(types), 3, 21)), Columns((4,)))
    return make_untrained("mnagt", features, SubTokens(("get", "set", "mean")), words)


@contextmanager
def running(trained: TrainedModel | Path, **settings) -> Iterator[str]:
    from mnagt.serve.app import create_app, set_up_process, uvicorn_options
    from mnagt.serve.config import ServeConfig

    config = ServeConfig(**settings)
    set_up_process(config)
    app = create_app(trained, config)
    server = uvicorn.Server(uvicorn.Config(app, port=0, **uvicorn_options(config)))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def at(molecules) -> Iterator[str]:
    """The address of a service for molecules."""
    with running(molecules) as address:
        yield address


@pytest.fixture
def start() -> Iterator[Callable[..., str]]:
    """Starts a service and returns its address."""
    with ExitStack() as running_ones:
        yield lambda trained, **settings: running_ones.enter_context(running(trained, **settings))
