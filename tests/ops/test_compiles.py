"""Every kernel compiles for a GPU that is not there: the interpreter takes what the compiler refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NORMS = {"_find", "_normalise", "_find_backward", "_normalise_backward"}
ATTENTION = {"attention_forward", "attention_backward"}
LINEAR = {"_multiply", "_add_up"}
ALONG_EDGES = {"_attend", "_into", "_out_of"}


KERNELS = {
    "mnagt": {"_mix", "_mix_backward", "_scaled_add", "_scaled_add_backward", "_gather", "_scatter", "_by_kind"}
    | {"_sum_rows"} | NORMS | ATTENTION | LINEAR,
    "mnagt-paper": {"_mix", "_mix_backward", "_sum_rows"} | ATTENTION | LINEAR,
    "gat": ALONG_EDGES | NORMS | LINEAR,
    "gt": ALONG_EDGES | NORMS | {"_multiply"},  # in half precision all rows of its batch fit into one split
    "graphormer": ATTENTION,
}  # fmt: skip


def test_a_step_of_each_model_compiles_for_hopper(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, [str(HERE.parent), env.get("PYTHONPATH")]))
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(HERE / "hopper.py"), *KERNELS], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout)
    assert {name: kernels - set(compiled[name]) for name, kernels in KERNELS.items()} == {
        name: set() for name in KERNELS
    }
