"""20,000 hostile requests: none is answered by a 500, none takes a second more than its limit.

``mnagt serve`` with a limit of ``--seconds`` for a request gets what ``benchmarks/serving.py`` calls malformed. Among
that are requests as large as may be, explanations that take long, floods beyond the limits, tensors of the Open
Inference Protocol, and clients that leave at once. Each must be refused by a status of the 400s, or, where it is within
the limits, be answered; 503 is allowed too, for that is what the time limit says. Then good requests must be answered,
and the service must not have grown.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
from serving import (  # type: ignore[import-not-found]
    DRUGS,
    Request,
    _bytes,
    generate_malformed,
    resident,
    save_untrained,
    service,
)

OVER_SECONDS = 1.0
"""That a request may take beyond its limit."""
GROWTH = 0.1
"""Share by which memory may grow after the first fifth of the requests."""
SETTLED_SECONDS = 15.0
"""Allocators keep freed memory for some seconds."""
LEAVES = 0.02
"""Seconds after which a client that leaves is gone."""


def chain(nodes: int, edges: int) -> dict[str, Any]:
    """A graph with so many nodes and about so many edges."""
    pairs = [[i % nodes, (i * 7 + 1) % nodes] for i in range(edges)]
    return {"nodes": nodes, "edges": pairs, "node_labels": [[0] * 9] * nodes, "edge_labels": [[0] * 3] * edges}


def generate_heavy(seed: int = 0) -> Iterator[Request]:
    """Requests that cost much, within the limits (``is_good``) and beyond them."""
    rng = random.Random(seed)
    while True:
        smiles = rng.choice(DRUGS)
        for path, body, is_good in (
            ("/predict", {"smiles": ["C" * rng.randint(900, 1000)] * 4}, True),
            ("/predict", {"smiles": [smiles] * rng.randint(100, 130)}, True),
            ("/predict", {"smiles": ["c1ccccc1" * 240] * 256}, False),
            ("/predict", {"smiles": ["c1ccccc1" * 249] * 16}, False),
            ("/predict", {"smiles": ["[H]" * 600] * 50}, False),
            ("/predict", {"smiles": ["C1CC1" * 200]}, True),
            ("/predict", {"graphs": [chain(1000, rng.randint(5000, 9000))]}, True),
            ("/predict", {"graphs": [chain(4, 40_000)]}, True),
            ("/predict", {"graphs": [{"nodes": 999, "edges": [], "node_labels": [[0] * 9] * 9}] * 99}, False),
            ("/explain", {"smiles": ["C" * rng.randint(200, 300)]}, True),
            ("/explain", {"graphs": [chain(rng.randint(200, 300), 3000)]}, True),
            ("/explain", {"smiles": [smiles], "target": "yes"}, True),
            ("/explain", {"smiles": ["C" * 900]}, False),
            ("/v2/models/mnagt/infer", _tensors(["C" * 900] * 4), True),
            ("/v2/models/mnagt/infer", _tensors([[smiles]] * 100), True),
            ("/v2/models/mnagt/infer", {"inputs": [_tensors([smiles])["inputs"][0]] * 500}, False),
            ("/v2/models/mnagt/infer", _tensors([*["["] * 3, smiles]), True),  # a note for each that cannot be read
            ("/predict", b"[" + b"0," * 400_000 + b"0]", False),
            ("/predict", b'{"smiles": ["' + b"\\u0043" * 150_000 + b'"]}', False),
        ):
            yield Request(path, _bytes(body), is_good=is_good)


def _tensors(data: list[Any]) -> dict[str, Any]:
    return {"inputs": [{"name": "smiles", "shape": [len(data), 1][:1], "datatype": "BYTES", "data": data}]}


def generate(heavy: int) -> Iterator[Request]:
    """Malformed requests, every ``heavy``-th a heavy one."""
    for number, (malformed, large) in enumerate(zip(generate_malformed(), generate_heavy(), strict=True)):
        yield large if number % heavy == 0 else malformed


async def pester(address: str, requests: list[Request], at_once: int) -> tuple[Counter[str], list[float], list[str]]:
    """The statuses of the answers, the seconds of each, and what was wrong with any. Every 20th client leaves."""
    import httpx

    statuses: Counter[str] = Counter()
    taken: list[float] = []
    wrong, waiting = [], iter(enumerate(requests))
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def caller() -> None:
            for number, request in waiting:
                start = time.perf_counter()
                sent = client.post(request.path, content=request.body, headers={"Content-Type": request.kind})
                try:
                    answer = await asyncio.wait_for(sent, LEAVES if number % 20 == 19 else None)
                except TimeoutError:
                    statuses["left"] += 1
                    continue
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                    wrong.append(f"{type(error).__name__} for {request.path} {request.body[:80]!r}")
                    continue
                taken.append(time.perf_counter() - start)
                statuses[str(answer.status_code)] += 1
                may_be = {200, 429, 503} if request.is_good else {503, *range(400, 500)}
                if answer.status_code not in may_be:
                    wrong.append(f"{answer.status_code} for {request.path} {request.body[:80]!r}: {answer.text[:80]}")

        await asyncio.gather(*(caller() for _ in range(at_once)))
    return statuses, taken, wrong


def settle(address: str, process: "subprocess.Popen[bytes]", good: list[Request]) -> tuple[Counter[str], float]:
    """The statuses of good requests, and the MiB in memory after them, when what was freed has been given back."""
    time.sleep(SETTLED_SECONDS)
    statuses, _, _ = asyncio.run(pester(address, good, 1))
    return statuses, resident(process)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="[20000]")
    parser.add_argument("--heavy", type=int, default=50, help="every so many-th is a heavy one [50]")
    parser.add_argument("--at-once", type=int, default=16, help="clients [16]")
    parser.add_argument("--seconds", type=float, default=3, help="limit of a request [3]")
    options = parser.parse_args()
    requests = list(islice(generate(options.heavy), options.requests))
    with tempfile.TemporaryDirectory() as scratch:
        save_untrained(folder := Path(scratch) / "model")
        with service(folder, "--seconds", str(options.seconds)) as (address, process):
            good = [Request("/predict", _bytes({"smiles": [smiles]}), is_good=True) for smiles in DRUGS]
            statuses, taken, wrong = asyncio.run(pester(address, requests[: len(requests) // 5], options.at_once))
            _, before = settle(address, process, good)
            more, also, too = asyncio.run(pester(address, requests[len(requests) // 5 :], options.at_once))
            last, after = settle(address, process, good)
    statuses, taken, wrong = statuses + more, sorted(taken + also), wrong + too
    over = taken[-1] - options.seconds
    print(f"{dict(sorted(statuses.items()))}; {before:.0f} MiB, {after:.0f} after")
    print(f"slowest {taken[-1]:.2f} s, and {options.seconds:g} are the limit")
    for line in wrong[:20]:
        print(f"wrong: {line}")
    figures = {
        "requests": len(requests),
        "limit_s": options.seconds,
        "slowest_s": taken[-1],
        "statuses": dict(statuses),
    }
    figures |= {"median_s": taken[len(taken) // 2], "p99_s": taken[int(0.99 * len(taken))]}
    common.write(options.out, figures | {"wrong": wrong, "mib": {"before": before, "after": after}})
    common.exit_if_missed(
        [f"{len(wrong)} wrong answers"] * bool(wrong)
        + [f"a request took {over:.1f} s more than its limit"] * (over > OVER_SECONDS)
        + ["good requests were not answered afterwards"] * (last["200"] != len(DRUGS))
        + [f"memory grew by {after - before:.0f} MiB"] * (after > (1 + GROWTH) * before)
    )


if __name__ == "__main__":
    main()
