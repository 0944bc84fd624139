"""Questions that arrive together are answered together, and each gets its own answer."""

import asyncio
import threading

import pytest

from mnagt.serve.batching import Batcher


def answered(questions, answer, **settings):
    """What becomes of questions asked at once, and the batches they came in."""
    batches = []

    def kept(batch):
        batches.append(list(batch))
        return answer(batch)

    async def all_of_them():
        batcher = Batcher(kept, **{"window": 0.01, "max_batch": 8, "max_waiting": 100, **settings})
        try:
            return await asyncio.gather(*map(batcher.submit, questions), return_exceptions=True)
        finally:
            batcher.close()

    return asyncio.run(all_of_them()), batches


def test_questions_share_batches_and_keep_their_order():
    told, batches = answered(range(19), lambda batch: [10 * q for q in batch])
    assert told == [10 * q for q in range(19)]
    assert [len(batch) for batch in batches] == [8, 8, 3]


def test_an_error_reaches_only_who_asked():
    told, _ = answered([1, 0, 2], lambda batch: [1 / q if q else ZeroDivisionError("zero") for q in batch])
    assert told[0] == 1
    assert isinstance(told[1], ZeroDivisionError)
    assert told[2] == 0.5


def test_a_batch_that_fails_fails_for_all_and_the_next_goes_on():
    def answer(batch):
        if "bad" in batch:
            raise RuntimeError("no")
        return batch

    told, _ = answered(["a", "bad", "b"], answer, max_batch=2)
    assert [type(each) for each in told] == [RuntimeError, RuntimeError, str]


def test_more_than_may_wait_are_sent_away():
    told, _ = answered(range(7), lambda batch: batch, max_waiting=5)
    assert sum(isinstance(each, asyncio.QueueFull) for each in told) == 2


def test_a_question_given_up_is_not_answered():
    release, seen = threading.Event(), []

    def answer(batch):
        seen.extend(batch)
        release.wait(5)
        return batch

    async def give_up():
        batcher = Batcher(answer, window=0, max_batch=1, max_waiting=9)
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
