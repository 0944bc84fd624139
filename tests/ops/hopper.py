"""A training step of a model whose kernels are compiled for an H100 or H200, and not launched: that takes no GPU.

Takes the names of models and prints a JSON object from model to kernels. The outputs of the step mean nothing. No shape
depends on what tensors hold, so the step asks for the kernels that a real one would.
"""

import json
import sys

import torch
from strategies import random_batch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mnagt import ops
from mnagt.data.registry import load_dataset
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Features
from mnagt.models.registry import build_model

PRECISIONS = {"mnagt-paper": (torch.bfloat16,), "gat": (None,), "gt": (torch.bfloat16,)}
"""Where a kernel of a model is compiled in the other precision for another model."""
compiled: set[str] = set()
run = JITFunction.run


class Hopper:
    """As much of a driver as compiling asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def only_compile(self, *args, warmup: bool, **options):
    compiled.add(self.__name__)
    return run(self, *args, warmup=True, **options)


def step(name: str, settings: dict, graph: GraphBatch, features: Features, precision: torch.dtype | None) -> None:
    model = build_model(name, settings, features, 2).train()
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        model(graph).sum().backward()


if __name__ == "__main__":
    driver.set_active(Hopper())  # pyright: ignore[reportArgumentType]
    JITFunction.run = only_compile
    ops.is_usable = lambda device: True
    torch.set_float32_matmul_precision("high")
    molecules = load_dataset("MUTAG")
    dense = random_batch([70, 20], 0.9, seed=0)  # a graph of several tiles, and many edges a node
    found = {}
    for name in sys.argv[1:]:
        compiled.clear()
        for precision in PRECISIONS.get(name, (torch.bfloat16, None)):
            step(name, {"depth": 1}, dense, Features(), precision)
            if name == "mnagt":  # the only one here with a kernel that reads edge columns
                step(name, {"depth": 1}, molecules.batch(torch.arange(8)), molecules.features, precision)
        found[name] = sorted(compiled)
    print(json.dumps(found))
