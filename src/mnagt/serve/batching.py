"""Requests that arrive together are processed as one batch."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class TooBusyError(Exception):
    """Too many requests are waiting."""


class Batcher(Generic[Item, Result]):
    """Calls ``process`` with batches of items, in a thread of its own.

    The first item waits up to ``window`` seconds for others; items that arrive while a batch is processed form the next
    one. ``process`` returns a result for each item; a result that is an exception is raised by ``submit``.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        window: float,
        max_batch: int,
        max_waiting: int,
    ) -> None:
        self._process, self._window, self._max_batch, self._max_waiting = process, window, max_batch, max_waiting
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batcher")
        self._task: asyncio.Task[None] | None = None
        self.on_batch: Callable[[int], None] = lambda size: None
        """Called with the size of each batch."""

    async def submit(self, item: Item) -> Result:
        """Wait for the result of ``item``. Raises ``TooBusyError`` if too many items wait."""
        if len(self._waiting) >= self._max_waiting:
            raise TooBusyError
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._arrived.set()
        return await future

    async def close(self) -> None:
        """Drop waiting items; the thread ends after its batch."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._window and len(self._waiting) < self._max_batch:
                await asyncio.sleep(self._window)
            waiting = [pair for pair in self._waiting if not pair[1].done()]  # others timed out
            batch, self._waiting = waiting[: self._max_batch], waiting[self._max_batch :]
            if not self._waiting:
                self._arrived.clear()
            if not batch:
                continue
            self.on_batch(len(batch))
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
