"""The same settings and seed give the same weights, bit for bit; what cannot be is named.

Run as a program, this file trains models on the device it is told and prints a digest of the weights of each.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from strategies import generator, random_batch
from torch import Tensor, nn
from torch.nn import functional as F

from mnagt import load_dataset, train
from mnagt.data.encodings import with_encodings
from mnagt.data.packed import PackedDataset
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.tasks import Regression

LEARNED = [name for name, entry in MODELS.items() if not entry.is_fitted_by_sklearn]
TRAINED = {
    "cpu": ["mnagt", "transformer", "gps", "gin", "wl-linear"],
    "cuda": [*LEARNED, "gat, dense", "gt, dense"],
}
"""Models, on MUTAG unless graphs are to be dense: then kernels along edges take over."""
NODES, DIM = 3001, 61


def digest(tensors: dict[str, Tensor]) -> str:
    parts = (name.encode() + tensor.cpu().contiguous().numpy().tobytes() for name, tensor in tensors.items())
    return hashlib.blake2b(b"".join(parts), digest_size=12).hexdigest()


def dense() -> PackedDataset:
    batch = random_batch([30, 20, 10] * 20, 0.6, seed=0)
    targets = torch.randn(batch.num_graphs, 1, generator=generator(0))
    return PackedDataset.from_batch("dense", Regression(("y",)), replace(batch, targets=targets))


def train_all(device: str) -> dict[str, str]:
    """A digest of each model's weights after an epoch; or what keeps it from being deterministic."""
    found = {}
    for name in TRAINED[device]:
        model, *kind = name.split(", ")
        settings = {"dim": 16, "depth": 2, "dropout": 0.3}
        settings = {each: value for each, value in settings.items() if each in full_settings(model, {})}
        config = RunConfig("MUTAG", model, settings, TrainConfig(epochs=1, batch_size=64, seed=5), device=device)
        try:
            found[name] = digest(train(config, dataset=dense() if kind else None).trained.model.state_dict())
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            found[name] = f"refused: {error}"
    return found


def in_another_process(device: str, hash_seed: int) -> dict[str, str]:
    told = {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | told
    done = subprocess.run([sys.executable, __file__, device], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def in_two_processes(device: str) -> list[dict[str, str]]:
    return [in_another_process(device, hash_seed) for hash_seed in (1, 2)]


@pytest.mark.parametrize("name", TRAINED["cpu"])
def test_every_process_trains_the_same_weights(name):
    one, other = (digests[name] for digests in in_two_processes("cpu"))
    assert one == other


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", TRAINED["cuda"])
def test_on_a_gpu_too_in_deterministic_mode(name):
    one, other = (digests[name] for digests in in_two_processes("cuda"))
    if one.startswith("refused"):
        pytest.skip(one)  # torch names the operation that it cannot do deterministically
    assert one == other


# --- threads ---


def with_threads(count: int, work: Callable[[], Any]) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        torch.manual_seed(3)
        return work()
    finally:
        torch.set_num_threads(before)


def assert_same_with_two_threads(work: Callable[[], Any]) -> None:
    torch.testing.assert_close(with_threads(2, work), with_threads(1, work), rtol=0, atol=0)


def gradients(of: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """What comes out, and the gradients of inputs and parameters."""
    wanted = [x.requires_grad_() for x in inputs if x.is_floating_point()] + list(of.parameters())
    out = of(*inputs)
    return [out.detach(), *torch.autograd.grad(out, wanted, torch.randn_like(out))]


def skip_if_products_are_split() -> None:
    linear = lambda: gradients(nn.Linear(DIM, 2 * DIM), torch.randn(NODES, DIM))  # noqa: E731
    if not all(map(torch.equal, with_threads(1, linear), with_threads(2, linear))):
        pytest.skip("MKL splits a matrix product by threads on this processor")


class Attend(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


OPERATIONS: dict[str, Callable[[], list[Tensor]]] = {
    "attention": lambda: gradients(Attend(), *torch.randn(3, 61, 6, 31, 32)),
    "embedding": lambda: gradients(nn.Embedding(37, DIM), torch.randint(37, (NODES,))),
    "sum over rows": lambda: [torch.randn(NODES, DIM).sum(dim=0)],
    "norm of all": lambda: [torch.randn(NODES, DIM).norm()],
    "dropout": lambda: gradients(nn.Dropout(0.3), torch.randn(NODES, DIM)),
}
"""Operations of torch that docs/reliability.md says do not depend on the number of threads."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_same_with_one_thread_or_two(name):
    assert_same_with_two_threads(OPERATIONS[name])


@pytest.mark.parametrize(("name", "settings"), [("sortpool", {}), ("gt", {"norm": "none", "depth": 2})])
def test_a_model_without_norms_trains_the_same_weights_with_one_thread_or_two(name, settings):
    skip_if_products_are_split()
    config = RunConfig("MUTAG", name, settings, TrainConfig(epochs=1, batch_size=188), device="cpu")
    assert_same_with_two_threads(lambda: train(config).trained.model.state_dict())


def test_in_deterministic_mode_batch_norm_does_not_depend_on_the_number_of_threads():
    skip_if_products_are_split()
    config = RunConfig("MUTAG", "gin", {"depth": 2}, TrainConfig(epochs=1, batch_size=94), device="cpu")
    torch.use_deterministic_algorithms(True)
    try:
        assert_same_with_two_threads(lambda: train(config).trained.model.state_dict())
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["mnagt", "gin"])
def test_a_trained_model_answers_the_same_with_one_thread_or_two(name):
    mutag = load_dataset("MUTAG")
    model = build_model(name, {}, mutag.features, 2).eval()
    batch = with_encodings(mutag, model.encodings).batch(torch.arange(len(mutag)))
    with torch.no_grad():
        assert_same_with_two_threads(lambda: model(batch))


if __name__ == "__main__":
    torch.use_deterministic_algorithms(sys.argv[1] != "cpu")
    print(json.dumps(train_all(sys.argv[1])))
