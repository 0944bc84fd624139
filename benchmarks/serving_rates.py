"""How many requests a service answers, and how fast, when more and more are offered.

A default ``mnagt`` for molecules that has learned nothing, drug-sized molecules, one in a request. Requests of the Open
Inference Protocol are sent at their time, whether or not earlier ones are answered (open loop); milliseconds count from
that time. ``mnagt serve`` has one process with one thread and computes by ONNX Runtime. With ``--mlserver
VENV/bin/mlserver`` MLServer does the same with the same file (``mlserver_molecules.py``), and both take turns, rate by
rate. VENV needs mlserver, and this package with its extras molecules and export.
"""

import asyncio
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import common
from serving import DRUGS, save_untrained, service

P99_MS = {50: 40.0, 200: 80.0}
"""Targets: milliseconds by requests a second."""
LEAST_SHARE = 0.9
"""Of the highest answered rate, what is still answered at the highest offered rate."""
INFER = "/v2/models/mnagt/infer"


async def offer(address: str, per_second: float, seconds: float) -> dict[str, Any]:
    """Requests at a rate: how many a second are answered, the statuses, and the milliseconds of those answered."""
    import httpx

    statuses: Counter[str] = Counter()
    taken = []
    limits = httpx.Limits(max_connections=600, max_keepalive_connections=600)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=30) as client:

        async def ask(at: float, smiles: str) -> None:
            await asyncio.sleep(at - time.perf_counter())
            tensor = {"name": "smiles", "shape": [1], "datatype": "BYTES", "data": [smiles]}
            try:
                response = await client.post(INFER, json={"inputs": [tensor]})
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1
                return
            statuses[str(response.status_code)] += 1
            if response.status_code == 200:
                taken.append((time.perf_counter() - at) * 1000)

        for smiles in DRUGS:  # warm-up
            await ask(time.perf_counter(), smiles)
        statuses.clear()
        taken.clear()
        start = time.perf_counter() + 0.1
        rows = zip(range(int(seconds * per_second)), itertools.cycle(DRUGS))
        await asyncio.gather(*(ask(start + i / per_second, smiles) for i, smiles in rows))
        spent = time.perf_counter() - start
    taken.sort()
    found = {f"p{share}_ms": taken[int(share / 100 * len(taken))] if taken else None for share in (50, 95, 99)}
    return {"answered_per_second": len(taken) / spent, "statuses": dict(statuses), **found}


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


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[50, 100, 200, 300, 500], help="requests a second")
    parser.add_argument("--seconds", type=float, default=20, help="of each rate [20]")
    parser.add_argument("--mlserver", metavar="COMMAND", help="compare with MLServer")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {"mnagt": {}} | ({"mlserver": {}} if options.mlserver else {})
    with tempfile.TemporaryDirectory() as name:
        from mnagt.inference.export import export_onnx

        scratch, folder, exported = Path(name), Path(name) / "model", Path(name) / "model.onnx"
        save_untrained(folder)
        export_onnx(folder, exported)
        for rate in options.rates:
            for server, measured in figures.items():
                ours = service(folder, "--onnx", str(exported))
                running = ours if server == "mnagt" else run_mlserver(options.mlserver, folder, exported, scratch)
                with running as started:
                    address = started if isinstance(started, str) else started[0]
                    found = measured[f"{rate:g}"] = asyncio.run(offer(address, rate, options.seconds))
                times = ", ".join(f"{key[:-3]} {found[key] or 0:.1f}" for key in ("p50_ms", "p95_ms", "p99_ms"))
                answered = f"{found['answered_per_second']:.1f} answered a second, {found['statuses']}"
                print(f"{server}, {rate:g} a second: {answered}; {times} (ms)", flush=True)
    common.write(options.out, {"seconds": options.seconds, "rates": figures})
    ours = figures["mnagt"]
    most = max(each["answered_per_second"] for each in ours.values())
    last = ours[f"{max(options.rates):g}"]["answered_per_second"]
    late = {rate: ms for rate, ms in P99_MS.items() if (ours.get(str(rate)) or {}).get("p99_ms", 0.0) > ms}
    common.exit_if_missed(
        [f"p99 above {ms:g} ms at {rate} a second" for rate, ms in late.items()]
        + [f"{last:.0f} answered a second of at most {most:.0f}"] * (last < LEAST_SHARE * most)
    )


if __name__ == "__main__":
    main()
