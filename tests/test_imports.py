"""Importing does nothing but define things, and asking for help does not wait for PyTorch."""

import subprocess
import sys

import pytest


def printed_by(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


LIBRARIES = {"torch", "numpy", "torch_geometric", "safetensors", "rich", "sklearn", "matplotlib", "jinja2"}
HEAVY = f"print(*sorted({LIBRARIES} & set(sys.modules)))"


def test_importing_the_package_imports_nothing_heavy():
    assert printed_by(f"import sys, mnagt; mnagt.__version__; dir(mnagt); {HEAVY}") == [""]


def test_the_public_layers_are_imported_at_first_use():
    program = f"import sys, mnagt.nn as mnn; dir(mnn); {HEAVY}; mnn.MNAGTConv; print('torch_geometric' in sys.modules)"
    assert printed_by(program) == ["", "False"]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["evaluate", "--help"], ["predict", "--help"]], ids=str)
def test_help_imports_nothing_heavy(words):
    program = f"import sys\nfrom mnagt.cli import main\ntry:\n    main({words})\nexcept SystemExit:\n    {HEAVY}"
    assert printed_by(program)[-1] == ""


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
