"""A service on Ray Serve that loses a machine under load: answers, failures, and how long they take.

Two nodes on this machine have a replica each. Molecules are sent to the proxy of the first node at ``--per-second``,
when their time has come whether or not earlier ones are answered, each once: a request that fails is not sent again.
After a third of ``--seconds`` the second node is killed (kill -9 of its raylet and its workers). Every answer is
compared with the model's own. No answer may be wrong, and less than one request in a hundred may fail. ``settled_s`` is
the time from the kill to the last failure. Needs ``ray[serve]``.
"""

import asyncio
import itertools
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common  # type: ignore[import-not-found]
from lost_node import kill_node
from serving import DRUGS, save_untrained  # type: ignore[import-not-found]

from mnagt.data.readers.smiles import read_smiles
from mnagt.experiments.executors import RAY_ENVIRONMENT
from mnagt.inference.model_folder import load_model
from mnagt.serve.ray_serve import make_deployment

MAX_FAILED = 0.01


class Answer(NamedTuple):
    """What came of a request."""

    sent_at: float
    seconds: float
    outcome: str
    """right, wrong, or why there is no prediction."""


async def send_load(address: str, expected: list[float], seconds: float, per_second: float) -> list[Answer]:
    """Requests at their time, open loop."""
    import httpx

    limits = httpx.Limits(max_connections=500, max_keepalive_connections=500)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=30) as client:

        async def ask(at: float, row: int) -> Answer:
            await asyncio.sleep(at - time.monotonic())
            try:
                response = await client.post("/predict", json={"smiles": [DRUGS[row]]})
                if response.status_code == 200:
                    (prediction,) = response.json()["predictions"]
                    outcome = "right" if abs(prediction["p(yes)"] - expected[row]) < 1e-4 else "wrong"
                else:
                    outcome = f"status {response.status_code}"
            except httpx.HTTPError as error:
                outcome = type(error).__name__
            return Answer(at, time.monotonic() - at, outcome)

        start = time.monotonic() + 0.1
        rows = zip(range(int(seconds * per_second)), itertools.cycle(range(len(DRUGS))))
        return await asyncio.gather(*(ask(start + i / per_second, row) for i, row in rows))


def lose_replica(folder: Path, seconds: float, per_second: float) -> dict[str, Any]:
    """Load on two nodes, one of which is killed."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    expected = load_model(folder).predict(read_smiles(DRUGS).graphs)["p(yes)"]
    size: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 2**27}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    other = cluster.add_node(**size)
    ray.init(cluster.address, configure_logging=False, log_to_driver=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    killed, commands = 0.0, []

    async def kill_and_load() -> list[Answer]:
        async def kill() -> None:
            nonlocal killed
            await asyncio.sleep(seconds / 3)
            commands.extend(kill_node(other))
            killed = time.monotonic()

        answers, _ = await asyncio.gather(send_load(address, expected, seconds, per_second), kill())
        return answers

    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(make_deployment(folder, replicas=2, cpus=1))
        address = f"http://127.0.0.1:{port}"
        asyncio.run(send_load(address, expected, 3, 10))  # warm-up
        answers = asyncio.run(kill_and_load())
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
    outcomes = Counter(each.outcome for each in answers)
    failed = [each.sent_at + each.seconds - killed for each in answers if each.outcome not in ("right", "wrong")]
    after = sorted(each.seconds for each in answers if each.outcome == "right" and each.sent_at > killed)
    before = sorted(each.seconds for each in answers if each.outcome == "right" and each.sent_at < killed)
    return {
        "replicas_killed": sum("ServeReplica" in command for command in commands),
        "requests": len(answers),
        "outcomes": dict(outcomes),
        "failed_share": len(failed) / len(answers),
        "settled_s": max(failed, default=0.0),
        "p95_before_ms": 1000 * before[int(0.95 * len(before))],
        "p95_after_ms": 1000 * after[int(0.95 * len(after))],
    }


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--per-second", type=float, default=20)
    options = parser.parse_args()
    os.environ.update(RAY_ENVIRONMENT)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save_untrained(folder)
        figures = lose_replica(folder, options.seconds, options.per_second)
    print(
        f"{figures['requests']} requests, {figures['outcomes']}; failures {100 * figures['failed_share']:.2f} %, none "
        f"later than {figures['settled_s']:.1f} s after the kill; p95 {figures['p95_before_ms']:.0f} ms before it and "
        f"{figures['p95_after_ms']:.0f} after"
    )
    common.write(options.out, {"seconds": options.seconds, "per_second": options.per_second} | figures)
    common.exit_if_missed(
        ["no replica was on the node that was killed"] * (not figures["replicas_killed"])
        + ["answers were wrong"] * ("wrong" in figures["outcomes"])
        + [f"{100 * figures['failed_share']:.1f} % failed"] * (figures["failed_share"] >= MAX_FAILED)
    )


if __name__ == "__main__":
    main()
