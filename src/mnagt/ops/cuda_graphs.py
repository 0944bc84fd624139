"""Functions captured as CUDA graphs."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


def capture(
    step: Callable[[], None],
    device: torch.device,
    pool: tuple[int, int] | None = None,
    state: Callable[[], Iterable[Tensor]] = tuple,
) -> torch.cuda.CUDAGraph:
    """``step`` as a CUDA graph with its memory in ``pool``. It runs once before, as a warm-up.

    What the warm-up does to the random generator and to the tensors that ``state`` gives is undone. Other threads, such
    as one that pins memory, may go on meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    with _warm_up(device), _restore_state(device, state):
        step()
    where = {"pool": pool, "stream": _capture_stream(device), "capture_error_mode": "thread_local"}
    with _pause_garbage_collection(), torch.cuda.graph(graph, **where):
        step()
    return graph


@contextmanager
def _restore_state(device: torch.device, state: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Undo what the block does to the state and the random generator."""
    before = [tensor.detach().to("cpu", copy=True) for tensor in state()]
    random_state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        torch.cuda.set_rng_state(random_state, device)
        for tensor, old in zip(state(), before, strict=True):
            tensor.detach().copy_(old)


@contextmanager
def _warm_up(device: torch.device) -> Iterator[None]:
    """A warm-up on the stream that captures: kernels are compiled, and cuBLAS allocates the stream's workspace."""
    side, usual = _capture_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        yield
    usual.wait_stream(side)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Freeing a CUDA graph while another is captured ends the capture with an error (pytorch/pytorch#161037)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that captures."""
    return torch.cuda.Stream(device)
