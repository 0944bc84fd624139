"""The benchmark of request rates counts what the service answers, and what is missed."""

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from serving_rates import list_missed, offer  # type: ignore[import-not-found]


def found(rate: float, share: float = 1.0, p99: float | None = 10.0) -> dict[str, Any]:
    return {"answered_per_second": share * rate, "answered_share": share, "p99_ms": p99}


def test_fast_and_complete_answers_miss_nothing():
    assert list_missed({50: found(50), 200: found(200), 500: found(500, 0.5)}) == []


def test_slow_answers_are_missed():
    assert list_missed({50: found(50, p99=41.0), 200: found(200, p99=79.0)}) == ["p99 41 ms at 50 a second"]


def test_fast_answers_to_few_are_missed():
    assert list_missed({50: found(50), 200: found(200, 0.9)}) == ["90.0 % answered at 200 a second"]


def test_no_answer_at_all_is_missed():
    missed = list_missed({50: found(50, 0.0, None), 200: found(200, 0.0, None)})
    assert missed[:2] == ["0.0 % answered at 50 a second", "0.0 % answered at 200 a second"]


def test_fewer_answers_under_overload_are_missed():
    assert list_missed({300: found(300, 0.9), 500: found(500, 0.4)}) == ["200 answered a second of at most 270"]


def test_answers_are_counted_by_status_and_closed_connections_are_replaced():
    served = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        for status in ("200 OK", "503 Service Unavailable"):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            served += 1
        writer.close()

    async def run() -> dict[str, Any]:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            return await offer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 50, 0.4)

    figures = asyncio.run(run())
    assert sum(figures["statuses"].values()) == 20
    assert served == 30  # with ten requests to warm up
    assert figures["statuses"]["200"] == round(20 * figures["answered_share"])
    assert figures["statuses"]["503"] >= 5
