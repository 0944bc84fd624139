"""Threads beside the event loop: one that processes requests in batches, and one that processes them one at a time."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class AbandonedError(Exception):
    """Nobody waits for the result any more."""


class Worker:
    """Calls functions one at a time in a thread of its own; at most ``max_waiting`` wait or run.

    A caller that gives up (it is cancelled) cancels its call: one that waits is never made. One that runs can find out
    through its argument, a function that raises ``AbandonedError`` from then on.
    """

    def __init__(self, max_waiting: int) -> None:
        self.waiting, self._max_waiting = 0, max_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._is_closed = threading.Event()

    async def run(self, function: Callable[[Callable[[], None]], Result]) -> Result:
        """Wait for ``function(check)``. Raises ``asyncio.QueueFull`` if too many wait."""
        if self.waiting >= self._max_waiting:
            raise asyncio.QueueFull
        is_abandoned = threading.Event()

        def check() -> None:
            if is_abandoned.is_set() or self._is_closed.is_set():
                raise AbandonedError

        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, partial(function, check))
        finally:
            self.waiting -= 1
            is_abandoned.set()

    def close(self) -> None:
        """Drop all calls; the one that runs ends at its next check."""
        self._is_closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)


class Batcher(Generic[Item, Result]):
    """Calls ``process`` with batches of items, in a thread of its own.

    The first item waits up to ``window`` seconds for others; items that arrive while a batch is processed form the next
    one. A batch ends with ``max_batch`` items, or with the item that brings its size, as ``measure`` has it, to
    ``max_size``. Items that nobody waits for any more are left out. ``process`` returns a result for each item; one
    that is an exception is raised by ``submit``.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        measure: Callable[[Item], int] = lambda item: 0,
        window: float,
        max_batch: int,
        max_size: int = 1,
        max_waiting: int,
    ) -> None:
        self._process, self._window, self._max_batch = process, window, max_batch
        self._measure, self._max_size = measure, max_size
        self._waiting: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue(max_waiting)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batcher")
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0

    async def submit(self, item: Item) -> Result:
        """Wait for the result of ``item``. Raises ``asyncio.QueueFull`` if too many items wait."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self.waiting += 1
        try:
            return await future
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Drop waiting items; the thread ends after its batch."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            item, future = await self._waiting.get()
            if self._window and 1 + self._waiting.qsize() < self._max_batch:
                await asyncio.sleep(self._window)
            batch, size = [], 0
            while True:
                if not future.done():  # others timed out
                    batch.append((item, future))
                    size += self._measure(item)
                if len(batch) == self._max_batch or size >= self._max_size or self._waiting.empty():
                    break
                item, future = self._waiting.get_nowait()
            if not batch:
                continue
            try:
                results = await loop.run_in_executor(self._thread, self._process, [item for item, _ in batch])
            except Exception as error:
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
