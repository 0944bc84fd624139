"""What every test may ask for."""

import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import install_import_hook

gc.disable()  # until all tests are collected: looking for garbage among what they import takes half of that time


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels then run on the CPU, step by step

if find_spec("beartype"):
    import shapes

    shapes.install()
    install_import_hook(
        ["mnagt.graphs", "mnagt.attention", "mnagt.nn", "mnagt.models", "mnagt.tasks", "mnagt.metrics"],
        "shapes.checked",
    )

    def pytest_runtest_setup() -> None:
        shapes.begin_test()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither see nor fill the user's cache. Workers of pytest-xdist share one, so that none reads data twice."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MNAGT_CACHE", str(shared / "cache"))
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with real data sets. With ``MNAGT_REQUIRE_DATA=1`` a test that needs it may not be skipped."""
    root = os.environ.get("MNAGT_DATA")
    if root:
        return Path(root)
    message = "set MNAGT_DATA to a folder with NCI1.zip, ...; `mnagt datasets` says where they come from"
    if os.environ.get("MNAGT_REQUIRE_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page or a plugin registers is gone after the test, and so is the plugin."""
    from mnagt import MODELS
    from mnagt.attention.kernels import KERNELS
    from mnagt.attention.mixers import MIXERS
    from mnagt.data.registry import DATASETS
    from mnagt.nn.readouts import READOUTS
    from mnagt.plugins import VARIABLE, _import, list_plugins
    from mnagt.registry import TASK_CHOICES
    from mnagt.tasks import TASKS

    tables: list[dict[str, Any]] = [MODELS, DATASETS, KERNELS, MIXERS, READOUTS, TASKS]
    before, choices = [dict(table) for table in tables], list(TASK_CHOICES)
    monkeypatch.setenv(VARIABLE, "")  # a command may add to it
    yield
    for name in list_plugins():
        sys.modules.pop(name, None)
    _import.cache_clear()
    TASK_CHOICES[:] = choices
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
