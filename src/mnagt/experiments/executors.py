"""Where many trainings run: one after another in this process, in processes of this machine, or on a Ray cluster."""

import logging
import multiprocessing
import os
import platform
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from mnagt.errors import InputError, explain_missing, one_line
from mnagt.experiments.config import RayConfig
from mnagt.plugins import list_plugins, load_plugins
from mnagt.version import __version__

Item = TypeVar("Item")
Value = TypeVar("Value")
Outcomes: TypeAlias = Iterator[tuple[Item, Callable[[], Value]]]
"""Pairs of an item and a function that returns its value or raises its error, in the order in which they end."""

MAX_ATTEMPTS = 4
"""Times that an item is started on a cluster. One whose worker dies each time is likely what kills it."""
OBJECT_STORE_BYTES = 2**27
"""Shared memory of a cluster that is started here. Only settings and figures travel through it."""
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""No usage statistics are sent, and no line of Ray's logs reaches our standard output."""

_log = logging.getLogger(__name__)


def do_nothing() -> None:
    pass


@contextmanager
def run_parallel(
    work: Callable[[Item], Value],
    items: Sequence[Item],
    *,
    jobs: int = 1,
    ray: RayConfig | None = None,
    device: Callable[[Item], str] = lambda item: "auto",
    set_up: Callable[[], None] = do_nothing,
    while_waiting: Callable[[], None] = do_nothing,
    kept: str = "nothing is kept",
    noun: str = "trial",
) -> Iterator[Outcomes[Item, Value]]:
    """The outcomes of ``work(item)`` for all ``items``.

    With ``ray`` they run on that cluster. Otherwise ``jobs`` run at a time, in processes of one thread each; with one
    job, an item runs in this process when its outcome is called. ``device`` is what an item asks for on a cluster
    (auto, cpu or cuda). ``set_up`` is called once in each process of this machine, and ``while_waiting`` several times
    a second. An exception in the block ends the items that are running. ``kept`` says where outcomes are kept, for the
    error that ends all when a process dies, and ``noun`` what an item is.

    >>> with run_parallel(abs, [-2, 3]) as outcomes:
    ...     [(item, outcome()) for item, outcome in outcomes]
    [(-2, 2), (3, 3)]
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    if ray is not None and items:
        with _connect(ray) as module:
            yield _run_on_ray(module, work, items, ray, device, while_waiting, noun)
    elif jobs == 1 or not items:
        set_up()
        yield ((item, partial(work, item)) for item in items)
    else:
        spawn = multiprocessing.get_context("spawn")
        with _defer_interrupts() as check, ProcessPoolExecutor(jobs, spawn, _set_up_worker, (set_up,)) as pool:
            try:
                running = {pool.submit(work, item): item for item in items}
                yield _wait_for(running, lambda: (check(), while_waiting()))
            except BaseException as error:
                for process in multiprocessing.active_children():
                    process.kill()  # asked to stop, it would go on with the next item; and nobody records this one
                if isinstance(error, BrokenExecutor):
                    reason = f"one of the {jobs} processes has died, likely for lack of memory"
                    raise InputError(f"{reason}; lower --jobs and run again: {kept}") from None
                raise


# --- processes of this machine ---


@contextmanager
def _defer_interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C raises ``KeyboardInterrupt`` where the function that is yielded is called, and nowhere else.

    Within ``wait`` it could leave a future locked, which its pool would then wait for without end. Handlers of others
    are left alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield do_nothing
        return
    requested = threading.Event()

    def check() -> None:
        if requested.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, lambda number, frame: requested.set())
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait_for(running: dict[Future[Value], Item], while_waiting: Callable[[], object]) -> Outcomes[Item, Value]:
    while running:
        done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
        while_waiting()
        for future in done:
            if isinstance(error := future.exception(), BrokenExecutor):
                raise error
            yield running.pop(future), future.result


def _set_up_worker(set_up: Callable[[], None]) -> None:
    """One thread a process. Ctrl-C is for the parent, which ends its workers; a killed parent takes them with it."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    set_up()


# --- a Ray cluster ---


def _run_on_ray(
    ray: Any,
    work: Callable[[Item], Value],
    items: Sequence[Item],
    config: RayConfig,
    device: Callable[[Item], str],
    while_waiting: Callable[[], None],
    noun: str,
) -> Outcomes[Item, Value]:
    """The outcomes of ``work`` on a cluster. Items of a worker or node that is lost are started again elsewhere."""
    remote = ray.remote(max_retries=0)(_work_remotely)  # retried here, where attempts are counted
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    resources = [_resources(nodes, config, device(item)) for item in items]

    def start(i: int) -> Any:
        return remote.options(**resources[i]).remote(work, items[i], config.cpus_per_trial, __version__, list_plugins())

    running, attempts = {start(i): i for i in range(len(items))}, Counter(range(len(items)))
    while running:
        done, _ = ray.wait(list(running), timeout=1)
        while_waiting()
        for reference in done:
            i, outcome = running.pop(reference), Future()
            try:
                outcome.set_result(ray.get(reference))
            except ray.exceptions.RayTaskError as error:
                outcome.set_exception(error.cause or error)
            except ray.exceptions.RayError as error:
                reason = f"{type(error).__name__}: {one_line(error, 120)}"
                if attempts[i] < MAX_ATTEMPTS:
                    attempts[i] += 1
                    _log.warning("a worker was lost (%s); its %s is started again", reason, noun)
                    running[start(i)] = i
                    continue
                message = f"{MAX_ATTEMPTS} workers in turn were lost at the same {noun}, likely for lack of memory"
                outcome.set_exception(InputError(f"{message} ({reason}); give it more --cpus-per-trial"))
            yield items[i], outcome.result


def _work_remotely(
    work: Callable[[Item], Value], item: Item, threads: int, version: str, plugins: Sequence[str]
) -> Value:
    """What a worker of the cluster does. Its errors name its machine."""
    import torch

    try:
        if version != __version__:
            raise InputError(f"has mnagt {__version__}, and here it is {version}; install the same")
        torch.set_num_threads(threads)
        load_plugins(plugins)
        return work(item)
    except InputError as error:
        raise InputError(f"node {platform.node()}: {error}") from None


@contextmanager
def _connect(config: RayConfig) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster, or to one that ends with the block."""
    os.environ.update(RAY_ENVIRONMENT)  # read when it is imported
    with explain_missing("--engine ray", "ray"):
        import ray
    options = {} if config.address else {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        if config.address and "://" not in config.address and ":" in config.address:
            host, _, port = config.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray would try for minutes
        ray.init(config.address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        where = config.address or "this machine"
        raise InputError(f"no Ray cluster at {where} ({one_line(error, 200)}); see --ray-address") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _resources(nodes: Sequence[dict[str, float]], config: RayConfig, device: str) -> dict[str, float]:
    """CPUs and GPUs of an item. Ray would wait without end for what no node has; that is refused."""
    kind, _, number = device.partition(":")
    if number:
        raise InputError(f"device {device}: Ray hands out GPUs by share; say cuda, cpu or auto")
    needs_gpu = kind == "cuda" or (kind == "auto" and any(node.get("GPU") for node in nodes))
    cpus, gpus = config.cpus_per_trial, config.gpus_per_trial if needs_gpu else 0
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        wanted = f"{cpus} CPUs" + (f" and {gpus} of a GPU" if needs_gpu else "")
        raise InputError(f"no node of the Ray cluster has {wanted}; lower --cpus-per-trial, or use --device cpu")
    return {"num_cpus": cpus, "num_gpus": gpus}
