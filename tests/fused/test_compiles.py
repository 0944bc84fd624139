"""Every kernel compiles for a GPU that is not there: the interpreter takes what the compiler refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NORMS = {"_find", "_normalise", "_find_backward", "_normalise_backward"}
ATTENTION = {"_forward", "_backward"}
LINEAR = {"_multiply", "_add_up"}
ALONG_EDGES = {"_attend", "_into", "_out_of"}


@pytest.mark.parametrize(
    ("name", "settings", "kernels"),
    [
        (
            "mnagt",
            {"depth": 1},
            {"_mix", "_mix_backward", "_scaled_add", "_scaled_add_backward", "_gather", "_scatter", "_by_kind"}
            | {"_sum_rows"} | NORMS | ATTENTION | LINEAR,
        ),
        ("mnagt-paper", {"depth": 1}, {"_mix", "_mix_backward", "_sum_rows"} | ATTENTION | LINEAR),
        ("gat", {"depth": 1}, ALONG_EDGES | NORMS | LINEAR),
        ("gt", {"depth": 1}, ALONG_EDGES | NORMS | LINEAR),
        ("graphormer", {"depth": 1}, ATTENTION),
    ],
)  # fmt: skip
def test_a_step_of_the_model_compiles_for_hopper(name, settings, kernels, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(HERE.parent), "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, str(HERE / "hopper.py"), name, json.dumps(settings)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert kernels <= set(done.stdout.split())
