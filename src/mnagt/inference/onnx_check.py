"""Checks an ONNX file that may be anyone's before it is run here."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np

from mnagt.errors import InputError
from mnagt.graphs.random_graphs import random_graphs
from mnagt.inference import onnx_worker
from mnagt.inference.export import CHECKED_SIZES, export_inputs
from mnagt.inference.model_folder import TrainedModel
from mnagt.migrations import EXPORT_INPUTS

SECONDS = 60
"""Of processor time for loading a file and running it on a few small graphs."""
MEMORY = 2**31
"""Bytes of memory for the same, beside four times the file."""
_WAITING = 10
"""How many times as long it may take by the clock, where processors are busy."""


def check_onnx(path: Path | str, trained: TrainedModel, *, seconds: int = SECONDS, memory: int = MEMORY) -> None:
    """Refuse an ONNX file that does more than compute with tensors, or takes too long or too much memory.

    The file is read in a process of its own, with limits that the system keeps, and run on small graphs. Loops,
    functions, other files and operators beside ``onnx_worker.OPERATORS`` are refused before anything is run.

    Args:
        path: The file.
        trained: The model it is said to be an export of.
        seconds: Processor time that it may take.
        memory: Bytes of memory, beside four times the size of the file.
    """
    runs = {}
    for run, sizes in enumerate(CHECKED_SIZES):
        columns = export_inputs(random_graphs(trained.model.features, sizes), trained)
        columns |= {old: columns[new] for old, new in EXPORT_INPUTS.items() if new in columns}
        runs |= {f"{run}/{name}": column.numpy() for name, column in columns.items()}
    inputs = io.BytesIO()
    np.savez(inputs, allow_pickle=False, **runs)
    limit = memory + 4 * Path(path).stat().st_size
    command = [sys.executable, "-I", onnx_worker.__file__, str(path), str(seconds), str(limit)]
    try:
        done = subprocess.run(command, input=inputs.getvalue(), capture_output=True, timeout=_WAITING * seconds)
    except subprocess.TimeoutExpired:
        raise InputError(f"{path}: small graphs take more than {_WAITING * seconds:,} s") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] if done.returncode == 1 else []
        reason = reason or [f"it takes more than {seconds} s or {limit / 2**30:.1f} GiB"]
        raise InputError(f"{path}: not run ({reason[0]}); export the model again")
