"""How many requests a service answers, and how fast, when more and more are offered.

A default ``mnagt`` for molecules that has learned nothing, drug-sized molecules, one in a request. Requests of the Open
Inference Protocol are sent at their time, whether or not earlier ones are answered (open loop); milliseconds count from
that time. ``mnagt serve`` has one process with one thread and computes by ONNX Runtime. With ``--mlserver
VENV/bin/mlserver`` MLServer does the same with the same file (``mlserver_molecules.py``), and both take turns, rate by
rate. VENV needs mlserver, and this package with its extras molecules and export. The server has one core of the machine
and the client another, where there are two.
"""

import asyncio
import gc
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
from serving import DRUGS, save_untrained, service

P99_MS = {50: 40.0, 200: 80.0}
"""Targets: milliseconds by requests a second."""
LEAST_ANSWERED = 0.999
"""Share of the requests that are answered at the rates with a target."""
LEAST_SHARE = 0.9
"""Of the highest answered rate, what is still answered at the highest offered rate."""
INFER = "/v2/models/mnagt/infer"
MAX_CONNECTIONS, LIMIT_SECONDS = 600, 30
"""Of the client; requests beyond them wait."""


class Connections:
    """Keeps connections to a service open. The client of httpx takes more time than the service if hundreds wait."""

    def __init__(self, address: str) -> None:
        self.host, port = address.removeprefix("http://").split(":")
        self.port, self.may_open = int(port), asyncio.Semaphore(MAX_CONNECTIONS)
        self.head = f"POST {INFER} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, body: str) -> int:
        """The status of the response, when all of it is there."""
        async with self.may_open, asyncio.timeout(LIMIT_SECONDS):
            while self.free and self.free[-1][0].at_eof():
                self.free.pop()[1].close()
            reader, writer = self.free.pop() if self.free else await asyncio.open_connection(self.host, self.port)
            writer.write(f"{self.head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        self.free.append((reader, writer))
        return int(head.split()[1])

    def close(self) -> None:
        for _, writer in self.free:
            writer.close()


async def offer(address: str, per_second: float, seconds: float) -> dict[str, Any]:
    """Requests at a rate: how many are answered, the statuses, and the milliseconds of those answered."""
    statuses: Counter[str] = Counter()
    taken, connections = [], Connections(address)

    async def ask(at: float, smiles: str) -> None:
        await asyncio.sleep(at - time.perf_counter())
        tensor = {"name": "smiles", "shape": [1], "datatype": "BYTES", "data": [smiles]}
        try:
            status = await connections.post(json.dumps({"inputs": [tensor]}))
        except (OSError, asyncio.IncompleteReadError) as error:  # TimeoutError too
            statuses[type(error).__name__] += 1
            return
        statuses[str(status)] += 1
        if status == 200:
            taken.append((time.perf_counter() - at) * 1000)

    for smiles in DRUGS:  # warm-up
        await ask(time.perf_counter(), smiles)
    statuses.clear()
    taken.clear()
    gc.collect()
    gc.disable()  # a search of the client's objects takes 0.3 s, in which it reads no response
    start, began = time.perf_counter() + 0.1, time.process_time()
    count = int(seconds * per_second)
    async with asyncio.TaskGroup() as sent:  # a task begins shortly before its time: all at once would delay the first
        for i, smiles in zip(range(count), itertools.cycle(DRUGS)):
            await asyncio.sleep(start + i / per_second - 0.05 - time.perf_counter())
            sent.create_task(ask(start + i / per_second, smiles))
    spent, client = time.perf_counter() - start, time.process_time() - began
    gc.enable()
    connections.close()
    taken.sort()
    found = {f"p{share}_ms": taken[int(share / 100 * len(taken))] if taken else None for share in (50, 95, 99)}
    answered = {"answered_per_second": len(taken) / spent, "answered_share": len(taken) / count}
    return {**answered, "client_share": client / spent, "statuses": dict(statuses), **found}


@contextmanager
def run_mlserver(command: str, folder: Path, exported: Path, scratch: Path) -> Iterator[str]:
    """MLServer with the same model, on a free port; batches of up to 64 requests that come within 2 ms."""
    with socket.socket() as free, socket.socket() as other, socket.socket() as third:
        ports = []
        for each in (free, other, third):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
    settings = {"host": "127.0.0.1", "http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2]}
    model = {"name": "mnagt", "implementation": "mlserver_molecules.OnnxMolecules"}
    model |= {"max_batch_size": 64, "max_batch_time": 0.002}
    model |= {"parameters": {"uri": str(exported), "extra": {"folder": str(folder)}}}
    (scratch / "settings.json").write_text(json.dumps(settings | {"parallel_workers": 0, "debug": False}))
    (scratch / "model-settings.json").write_text(json.dumps(model))
    shutil.copy(Path(__file__).with_name("mlserver_molecules.py"), scratch)  # MLServer looks for it there
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([command, "start", str(scratch)], env=environment, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{ports[0]}"
    try:
        while started.poll() is None and not _is_ready(address):
            time.sleep(0.2)
        if started.poll() is not None:
            raise SystemExit(f"{command} ended with status {started.returncode}")
        yield address
    finally:
        started.terminate()
        started.wait()


def _is_ready(address: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{address}/v2/models/mnagt/ready").status_code == 200
    except httpx.HTTPError:
        return False


def list_missed(measured: Mapping[float, Mapping[str, Any]]) -> list[str]:
    """Targets that the figures of the rates miss. A rate without answers misses its target."""
    missed = []
    for rate, ms in P99_MS.items():
        if (found := measured.get(rate)) is None:
            continue
        if found["answered_share"] < LEAST_ANSWERED:
            missed.append(f"{100 * found['answered_share']:.1f} % answered at {rate} a second")
        elif found["p99_ms"] > ms:
            missed.append(f"p99 {found['p99_ms']:.0f} ms at {rate} a second")
    most = max(each["answered_per_second"] for each in measured.values())
    last = measured[max(measured)]["answered_per_second"]
    return missed + [f"{last:.0f} answered a second of at most {most:.0f}"] * (last < LEAST_SHARE * most or not most)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 300, 500], help="requests a second")
    parser.add_argument("--seconds", type=float, default=20, help="of each rate [20]")
    parser.add_argument("--mlserver", metavar="COMMAND", help="compare with MLServer")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pinned, load = {"server": cores[0], "client": cores[-1]}, os.getloadavg()[0]
    print(f"server on core {cores[0]}, client on core {cores[-1]}; load before {load:.2f}", flush=True)
    figures: dict[str, dict[float, Any]] = {"mnagt": {}} | ({"mlserver": {}} if options.mlserver else {})
    with tempfile.TemporaryDirectory() as name:
        from mnagt.inference.export import export_onnx

        scratch, folder, exported = Path(name), Path(name) / "model", Path(name) / "model.onnx"
        save_untrained(folder)
        export_onnx(folder, exported)
        for rate in options.rates:
            for server, measured in figures.items():
                ours = service(folder, "--onnx", str(exported))
                running = ours if server == "mnagt" else run_mlserver(options.mlserver, folder, exported, scratch)
                os.sched_setaffinity(0, {pinned["server"]})  # processes started from here on have it too
                with running as started:
                    os.sched_setaffinity(0, {pinned["client"]})
                    address = started if isinstance(started, str) else started[0]
                    found = measured[rate] = asyncio.run(offer(address, rate, options.seconds))
                print(f"{server}, {rate:g} a second: {_format(found)}", flush=True)
    figures_by_rate = {server: {f"{rate:g}": found for rate, found in each.items()} for server, each in figures.items()}
    settings = {"seconds": options.seconds, "cores": pinned, "load before": load}
    common.write(options.out, {**settings, "rates": figures_by_rate})
    common.exit_if_missed(list_missed(figures["mnagt"]))


def _format(found: Mapping[str, Any]) -> str:
    times = ", ".join(f"{key[:-3]} {found[key] or 0:.1f}" for key in ("p50_ms", "p95_ms", "p99_ms"))
    client = f"client {100 * found['client_share']:.0f} % of its core"
    return f"{found['answered_per_second']:.1f} answered a second, {found['statuses']}; {times} (ms); {client}"


if __name__ == "__main__":
    main()
