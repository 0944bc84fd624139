"""Importing does nothing but define things, and asking for help does not wait for PyTorch."""

import subprocess
import sys
from pathlib import Path

import pytest

from mnagt.graphs.features import Columns, Features
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model, resolve_settings
from mnagt.tasks import SingleLabel


def printed_by(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
LIBRARIES = {"torch", "numpy", "torch_geometric", "safetensors", "rich", "sklearn", "matplotlib", "jinja2"}
HEAVY = f"print(*sorted({LIBRARIES} & set(sys.modules)))"


def test_importing_the_package_imports_nothing_heavy():
    assert printed_by(f"import sys, mnagt; mnagt.__version__; dir(mnagt); {HEAVY}") == [""]


def test_the_public_layers_are_imported_at_first_use():
    program = f"import sys, mnagt.nn as mnn; dir(mnn); {HEAVY}; mnn.MNAGTConv; print('torch_geometric' in sys.modules)"
    assert printed_by(program) == ["", "False"]


def test_help_imports_nothing_heavy():
    program = f"""
import io, sys
from contextlib import redirect_stdout
from mnagt.cli import COMMANDS, main
for words in [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]:
    try:
        with redirect_stdout(io.StringIO()):
            main(words)
    except SystemExit:
        print(words, sorted({LIBRARIES} & set(sys.modules)))
"""
    lines = printed_by(program)
    assert len(lines) > 15
    assert [line for line in lines if not line.endswith("[]")] == []


def test_commands_import_torch_without_searches_for_garbage():
    """And have the collector on after it."""
    searches = "import gc; searches = []; gc.callbacks.append(lambda phase, info: searches.append(phase))"
    program = f"{searches}; from mnagt.cli.garbage_collection import import_torch; searches.clear(); import_torch()"
    left = "print(len(searches), gc.isenabled(), gc.get_freeze_count() > 10**5, 'torch' in sys.modules)"
    assert printed_by(f"import sys; {program}; {left}") == ["0 True True True"]


def test_a_model_is_loaded_without_the_compiler_of_torch(tmp_path):
    """The compiler takes a second to import; arithmetic on the meta device imports it."""
    features = Features(Columns(labels=(3,)), Columns(labels=(4,)))
    settings = resolve_settings("mnagt", {"dim": 8, "depth": 1, "wl_vocabulary_size": 8}, features, outputs=2)
    model = build_model("mnagt", settings, features, 2)
    TrainedModel(model, SingleLabel(("a", "b")), "mnagt", settings, {}, {}).save(tmp_path / "model")
    load = f"import sys, mnagt; print(mnagt.load_model({str(tmp_path / 'model')!r}).name)"
    assert printed_by(f"{load}; print('torch._dynamo' in sys.modules)") == ["mnagt", "False"]


def test_a_step_of_training_does_without_the_compiler_of_torch():
    """Which would take a second and 120 MB."""
    program = """
import sys
import torch
from mnagt.training.optim import ClippedAdamW
model = torch.nn.Linear(3, 1)
optimizer = ClippedAdamW([{"params": list(model.parameters())}], lr=0.1, clip=1.0)
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print([model.weight.grad, len(optimizer.state), "torch._dynamo" in sys.modules])
"""
    assert printed_by(program) == ["[None, 2, False]"]


def test_importing_everything_touches_no_network_no_device_and_no_logging():
    program = """
import importlib, logging, pkgutil, socket, threading

import torch

def refuse(*args, **named):
    raise AssertionError("an import reached out")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
torch.cuda.is_available = torch.cuda.device_count = torch.cuda.init = torch.cuda._lazy_init = refuse
state, threads = torch.get_rng_state(), torch.get_num_threads()

import mnagt

names = [m.name for m in pkgutil.walk_packages(mnagt.__path__, "mnagt.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
for name in mnagt.__all__:
    getattr(mnagt, name)

import sys
assert not logging.root.handlers and not logging.getLogger("mnagt").handlers
assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
assert threading.active_count() == 1
assert "torch_geometric" not in sys.modules
print(len(names))
"""
    (count,) = printed_by(program)
    assert int(count) > 40


def test_names_that_are_not_there_are_not_made_up():
    import mnagt

    with pytest.raises(AttributeError, match="module 'mnagt' has no attribute 'nothing'"):
        mnagt.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_help_of_every_command_and_a_few_predictions_come_soon(tmp_path, monkeypatch):
    """By processor time, of the process and its children."""
    import imports  # type: ignore[import-not-found]

    monkeypatch.setenv("MNAGT_CACHE", str(tmp_path))
    predict = imports.prepare_prediction(tmp_path)
    slowest = max(map(imports.cpu_seconds, imports.HELP))
    seconds = {imports.SLOWEST_HELP: slowest, imports.PREDICT: min(imports.cpu_seconds(predict) for _ in range(2))}
    assert imports.find_slow(seconds) == []
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 13
