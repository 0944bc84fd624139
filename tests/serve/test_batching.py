"""Requests that arrive together are processed together, and each gets its own result."""

import asyncio
import threading
import time

import pytest

from mnagt.serve.batching import AbandonedError, Batcher, Worker


def run_batcher(items, process, **settings):
    """The results of items submitted at once, and the batches they came in."""
    batches = []

    def record(batch):
        batches.append(list(batch))
        return process(batch)

    async def submit_all():
        batcher = Batcher(record, **{"window": 0.01, "max_batch": 8, "max_waiting": 100, **settings})
        try:
            return await asyncio.gather(*map(batcher.submit, items), return_exceptions=True)
        finally:
            batcher.close()

    return asyncio.run(submit_all()), batches


def test_items_share_batches_and_keep_their_order():
    results, batches = run_batcher(range(19), lambda batch: [10 * q for q in batch])
    assert results == [10 * q for q in range(19)]
    assert [len(batch) for batch in batches] == [8, 8, 3]


def test_an_error_reaches_only_its_item():
    results, _ = run_batcher([1, 0, 2], lambda batch: [1 / q if q else ZeroDivisionError("zero") for q in batch])
    assert results[0] == 1
    assert isinstance(results[1], ZeroDivisionError)
    assert results[2] == 0.5


def test_a_batch_that_fails_fails_for_all_and_the_next_goes_on():
    def process(batch):
        if "bad" in batch:
            raise RuntimeError("no")
        return batch

    results, _ = run_batcher(["a", "bad", "b"], process, max_batch=2)
    assert [type(each) for each in results] == [RuntimeError, RuntimeError, str]


def test_more_than_may_wait_are_sent_away():
    results, _ = run_batcher(range(7), lambda batch: batch, max_waiting=5)
    assert sum(isinstance(each, asyncio.QueueFull) for each in results) == 2


def test_a_batch_ends_with_the_item_that_fills_it():
    _, batches = run_batcher([5, 3, 4, 9, 1], lambda batch: batch, measure=lambda item: item, max_size=8)
    assert batches == [[5, 3], [4, 9], [1]]


def test_an_item_given_up_is_not_processed():
    release, seen = threading.Event(), []

    def process(batch):
        seen.extend(batch)
        release.wait(5)
        return batch

    async def give_up():
        batcher = Batcher(process, window=0, max_batch=1, max_waiting=9)
        first = asyncio.create_task(batcher.submit("first"))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.submit("given up"), 0.05)
        last = asyncio.create_task(batcher.submit("last"))
        release.set()
        assert await first == "first"
        assert await last == "last"
        batcher.close()

    asyncio.run(give_up())
    assert seen == ["first", "last"]


def test_a_worker_drops_calls_given_up_and_tells_the_one_that_runs():
    is_begun, outcomes = threading.Event(), []

    def run(check):
        is_begun.set()
        try:
            for _ in range(500):
                check()
                time.sleep(0.01)
        except AbandonedError:
            outcomes.append("abandoned")
            raise

    async def give_up():
        worker = Worker(max_waiting=2)
        first = asyncio.create_task(worker.run(run))
        second = asyncio.create_task(worker.run(lambda check: outcomes.append("made")))
        await asyncio.to_thread(is_begun.wait)
        with pytest.raises(asyncio.QueueFull):
            await worker.run(run)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert await worker.run(lambda check: "third") == "third"
        worker.close()

    asyncio.run(give_up())
    assert outcomes == ["abandoned"]
