"""Where work is done side by side: in processes of this machine, or on a Ray cluster."""

import logging
import multiprocessing
import os
import platform
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from mnagt.errors import InputError
from mnagt.settings import at_least
from mnagt.version import __version__

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Outcomes: TypeAlias = Iterator[tuple[Item, Callable[[], Answer]]]
"""Each item with what returns its answer or raises what went wrong, as they end."""

TRIES = 4
"""Times that an item is begun on a cluster; one whose worker dies each time is likely what kills it."""
STORE = 2**27
"""Bytes of shared memory for a cluster of this machine's own: settings and figures are all that travels."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Nothing is sent to Ray's makers, and no line of its logs goes to our standard output."""

log = logging.getLogger(__name__)


# --- this machine ---


@contextmanager
def side_by_side(work: Callable[[Item], Answer], items: Sequence[Item], jobs: int) -> Iterator[Outcomes[Item, Answer]]:
    """The outcomes of ``work``, done ``jobs`` at a time in processes of one thread. A failure in the block ends all."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_settle) as pool:
        running = {pool.submit(work, item): item for item in items}
        try:
            yield ((running[done], done.result) for done in as_completed(running))
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()  # asked to stop, it would go on with the next item; and nobody writes this one down
            raise


def _settle() -> None:
    """One thread a process; Ctrl-C is for the training in it, and nothing between trainings."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()


def follow_parent() -> None:
    """End when the process that started this one ends, be it by kill -9; a worker of a pool would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


# --- a Ray cluster ---


@dataclass(frozen=True)
class RayConfig:
    """A Ray cluster, and how much of it a trial takes; as many run side by side as there is room for."""

    ray_address: str | None = None
    """HOST:PORT of a cluster; none for RAY_ADDRESS, and without it a cluster of this machine's own."""
    cpus_per_trial: int = 1
    """CPUs, and threads, of a trial."""
    gpus_per_trial: float = 0.25
    """Share of a GPU that a trial takes, where there are GPUs and its device is not cpu."""

    def __post_init__(self) -> None:
        at_least(self, 1, "cpus_per_trial")
        if not 0 < self.gpus_per_trial <= 1:
            raise InputError(f"gpus_per_trial is a share of one GPU, above 0 and at most 1, got {self.gpus_per_trial}")

    @property
    def address(self) -> str | None:
        """Of a cluster that is there already."""
        return self.ray_address or os.environ.get("RAY_ADDRESS") or None


@contextmanager
def on_ray(
    work: Callable[[Item], Answer],
    items: Sequence[Item],
    config: RayConfig,
    *,
    device: Callable[[Item], str],
    while_waiting: Callable[[], None] = lambda: None,
) -> Iterator[Outcomes[Item, Answer]]:
    """The outcomes of ``work``, done on a Ray cluster. Items of a worker or node that is lost are begun anew elsewhere.

    ``device`` is the one an item asks for (auto, cpu or cuda). ``while_waiting`` is called every second. The block's
    end, by whatever way, ends what is under way.
    """
    ray = _ray()
    with _connected(ray, config):
        remote = ray.remote(max_retries=0)(_work)  # retried here, where tries are counted
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        shares = [_share(nodes, config, device(item)) for item in items]

        def begin(i: int) -> Any:
            return remote.options(**shares[i]).remote(work, items[i], config.cpus_per_trial, __version__)

        yield _as_they_end(ray, begin, items, while_waiting)


def _as_they_end(
    ray: Any, begin: Callable[[int], Any], items: Sequence[Item], while_waiting: Callable[[], None]
) -> Outcomes[Item, Any]:
    running, tries = {begin(i): i for i in range(len(items))}, Counter(range(len(items)))
    while running:
        done, _ = ray.wait(list(running), timeout=1)
        while_waiting()
        for each in done:
            i = running.pop(each)
            try:
                answer = ray.get(each)
            except ray.exceptions.RayTaskError as error:
                yield items[i], partial(_fail, error.cause or error)
            except ray.exceptions.RayError as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                if tries[i] < TRIES:
                    tries[i] += 1
                    log.warning("a worker was lost (%s); its trial is begun anew", reason)
                    running[begin(i)] = i
                else:
                    told = f"{TRIES} workers in turn were lost at the same trial, likely for lack of memory ({reason})"
                    yield items[i], partial(_fail, InputError(f"{told}; give it more --cpus-per-trial"))
            else:
                yield items[i], partial(_same, answer)


def _same(answer: Answer) -> Answer:
    return answer


def _fail(error: BaseException) -> Any:
    raise error


def _work(work: Callable[[Item], Answer], item: Item, threads: int, version: str) -> Answer:
    """What a worker does. What is wrong with it is told with the name of its machine."""
    import torch

    try:
        if version != __version__:
            raise InputError(f"has mnagt {__version__}, and here it is {version}; install the same")
        torch.set_num_threads(threads)
        return work(item)
    except InputError as error:
        raise InputError(f"node {platform.node()}: {error}") from None


def _ray() -> Any:
    os.environ.update(QUIET)  # read when it is imported
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install 'mnagt[ray]'") from None
    return ray


@contextmanager
def _connected(ray: Any, config: RayConfig) -> Iterator[None]:
    """Joined to the cluster, or to one begun here that ends with the block."""
    own = {} if config.address else {"include_dashboard": False, "object_store_memory": STORE}
    try:
        if config.address and "://" not in config.address and ":" in config.address:
            host, _, port = config.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray would try for minutes
        ray.init(config.address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"no Ray cluster at {config.address or 'this machine'} ({reason}); see --ray-address"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _share(nodes: Sequence[dict[str, float]], config: RayConfig, device: str) -> dict[str, float]:
    """What an item takes of a node. What none of these has would be waited for without end, and is refused."""
    kind, _, number = device.partition(":")
    if number:
        raise InputError(f"device {device}: Ray hands out GPUs by share; say cuda, cpu or auto")
    wants_gpu = kind == "cuda" or (kind == "auto" and any(node.get("GPU") for node in nodes))
    share = {"num_cpus": config.cpus_per_trial, "num_gpus": config.gpus_per_trial if wants_gpu else 0}
    if not any(node.get("CPU", 0) >= share["num_cpus"] and node.get("GPU", 0) >= share["num_gpus"] for node in nodes):
        told = f"{config.cpus_per_trial} CPUs" + (f" and {config.gpus_per_trial} of a GPU" if wants_gpu else "")
        raise InputError(f"no node of the Ray cluster has {told}; lower --cpus-per-trial, or use --device cpu")
    return share
