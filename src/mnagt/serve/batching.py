"""Questions that arrive together are answered together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class TooBusyError(Exception):
    """There are too many questions waiting."""


class Batcher(Generic[Question, Answer]):
    """Gives questions to ``answer`` a batch at a time, in a thread of its own.

    The first question waits up to ``window`` seconds for others; while a batch is being answered the next one gathers.
    ``answer`` returns one answer a question, in that order; one that is an exception is raised where it was asked.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Sequence[Answer | Exception]],
        *,
        window: float,
        max_batch: int,
        max_waiting: int,
    ) -> None:
        self._answer, self._window, self._max_batch, self._max_waiting = answer, window, max_batch, max_waiting
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batcher")
        self._task: asyncio.Task[None] | None = None
        self.told: Callable[[int], None] = lambda size: None
        """Called with the size of each batch."""

    async def ask(self, question: Question) -> Answer:
        """The answer, or the exception that ``answer`` has for it."""
        if len(self._waiting) >= self._max_waiting:
            raise TooBusyError
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        self._arrived.set()
        return await future

    async def close(self) -> None:
        """Forget what waits; the thread ends with its batch."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._window and len(self._waiting) < self._max_batch:
                await asyncio.sleep(self._window)
            waiting = [pair for pair in self._waiting if not pair[1].done()]  # others were given up
            batch, self._waiting = waiting[: self._max_batch], waiting[self._max_batch :]
            if not self._waiting:
                self._arrived.clear()
            if not batch:
                continue
            self.told(len(batch))
            try:
                answers = await loop.run_in_executor(self._thread, self._answer, [question for question, _ in batch])
            except Exception as error:
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
