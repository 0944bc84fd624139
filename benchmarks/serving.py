"""The service, and a single graph in process: how fast, and what bad requests do to it.

A default ``mnagt`` for molecules that has learned nothing (speed does not ask for weights), drug-sized molecules.
Single graphs: the model alone, ``TrainedModel.predict``, and ONNX Runtime with the exported model, taking turns. Load:
50 requests a second for ``--seconds``, sent when their time has come whether or not earlier ones are answered; seconds
count from that time. Malformed: ``--malformed`` requests of every bad kind; each must get an answer of the 400s (or 200
where a single node is asked about), and the service must be no larger after. ``mnagt serve`` runs in a process of its
own, with its default settings.
"""

import asyncio
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import common

P95_MS, SINGLE_MS, PER_SECOND, GROWTH_MIB = 100.0, 5.0, 50, 32.0
"""Targets, and what memory may vary by."""
DRUGS = (
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CN1CCN(CC1)Cc1ccc(cc1)C(=O)Nc1ccc(C)c(c1)Nc1nccc(n1)-c1cccnc1",
    "CC(=O)Nc1ccc(cc1)S(=O)(=O)N2CCN(CC2)C(=O)c3ccccc3",
    "CCOC(=O)C1=C(COCCN)NC(C)=C(C1c1ccccc1Cl)C(=O)OC",
    "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1",
    "COc1cc2c(cc1OCCCN1CCOCC1)c(ncn2)Nc1ccc(F)c(Cl)c1",
    "OC(=O)CCCc1ccc(cc1)N(CCCl)CCCl",
    "CN(C)CCCN1c2ccccc2CCc2ccccc12",
)
ROUNDS = 200


class Request(NamedTuple):
    """What is sent, and whether it can be answered."""

    path: str
    body: bytes
    kind: str = "application/json"
    is_good: bool = False


def generate_malformed(seed: int = 0) -> Iterator[Request]:
    """Bad requests without end: every kind in turn, with other contents each time."""
    rng = random.Random(seed)
    while True:
        for make in _BAD:
            path = rng.choice(("/predict", "/explain"))
            made = make(rng)
            yield made._replace(path=path) if isinstance(made, Request) else Request(path, _bytes(made))


def _bytes(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def _odd(rng: random.Random) -> Any:
    """Something of a wrong type, or of a strange value."""
    return rng.choice(
        [None, True, -1, 0, 1.5, 1e308, -(10**30), "", "x", "\ud800", "\0", "🙂", [], {}, [[]], [None], {"a": 1}]
    )


def _nest_brackets(rng: random.Random, opening: str, closing: str) -> bytes:
    depth = rng.choice((100, 2000, 100_000))
    return (opening * depth + closing * depth * rng.randrange(2)).encode()


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 200))


def _cut_off(rng: random.Random) -> bytes:
    whole = json.dumps({"smiles": [rng.choice(DRUGS)]}).encode()
    return whole[: rng.randrange(1, len(whole) - 1)]


def _graph(rng: random.Random, **change: Any) -> dict[str, Any]:
    nodes = rng.randrange(1, 6)
    edges = [[i, i + 1] for i in range(nodes - 1)]
    good = {"nodes": nodes, "edges": edges, "node_labels": [[0] * 9] * nodes, "edge_labels": [[0] * 3] * len(edges)}
    return {"graphs": [good | change]}


def _wrong_field(rng: random.Random) -> Any:
    graph = _graph(rng)
    target = rng.choice([graph, graph["graphs"][0]])
    key = rng.choice(list(target))
    was = target[key]
    while (odd := _odd(rng)) == was or (key == "edges" and odd == []):
        pass
    target[key] = odd
    if rng.randrange(3) == 0:
        target[_text(rng, 9) + "?"] = _odd(rng)
    return graph if _is_bad(graph) else {"graphs": odd}


def _is_bad(graph: Any) -> bool:
    """Whether the change left something that cannot be read: a number of nodes may have come out right."""
    each = graph["graphs"]
    if not isinstance(each, list) or len(each) != 1 or not isinstance(each[0], dict):
        return True
    one = each[0]
    return one.get("edge_labels") is not None or bool(one.get("edges"))


def _text(rng: random.Random, most: int) -> str:
    return "".join(chr(rng.randrange(32, 0x2FF)) for _ in range(rng.randrange(most)))


_BAD: tuple[Callable[[random.Random], Any], ...] = (
    _noise,
    _cut_off,
    lambda rng: b"",
    lambda rng: _nest_brackets(rng, "[", "]"),
    lambda rng: _nest_brackets(rng, '{"graphs":', "}"),
    lambda rng: b'{"smiles": ["' + rng.randbytes(20).replace(b'"', b"") + b'\xff"]}',
    lambda rng: {"smiles": _odd(rng)},
    lambda rng: {"smiles": [_odd(rng)] * rng.randrange(1, 4)},
    lambda rng: {"smiles": [_text(rng, 40) + "?"]},
    lambda rng: {"smiles": ["C" * rng.randrange(2001, 50_000)]},
    lambda rng: {"smiles": ["(" * rng.randrange(1, 2000)]},
    lambda rng: {"smiles": ["C1" * rng.randrange(1, 900) + "%"]},
    lambda rng: {"smiles": ["C"] * rng.randrange(257, 5000)},
    lambda rng: {"smiles": [rng.choice(DRUGS)], "graphs": []},
    lambda rng: {"smiles": [rng.choice(DRUGS)], _text(rng, 9) + "?": _odd(rng)},
    lambda rng: {"smiles": [rng.choice(DRUGS)], "level": rng.choice([0, 1, -1, 2, "high", [], 0.5])},
    lambda rng: {"code": _text(rng, 50)},
    lambda rng: _odd(rng),
    _wrong_field,
    lambda rng: _graph(rng, nodes=rng.choice([0, -1, 10**6, 2**31, 2**63, 10**30, 1.5, "3", True, None])),
    lambda rng: _graph(rng, edges=[[0, rng.choice([7, -1, 2**31, 1.5, "0", None])]], edge_labels=[[0, 0, 0]]),
    lambda rng: _graph(rng, edges=[[0, 0, 0]]),
    lambda rng: _graph(rng, node_labels=[[rng.choice([999, -2, 2**40, "C", 0.5, None])] * 9] * 5),
    lambda rng: _graph(rng, node_values=[[rng.choice([1e400, 0.0])]] * 5),
    lambda rng: b'{"graphs": [{"nodes": 1, "node_labels": [[0,0,0,0,0,0,0,0,0]], "node_values": [[NaN]]}]}',
    lambda rng: b'{"graphs": [{"nodes": ' + b"9" * rng.randrange(20, 6000) + b"}]}",
    lambda rng: {"graphs": []},
    lambda rng: b'{"smiles": ["' + b"C" * rng.choice((1_000_000, 1_200_000)) + b'"]}',
    lambda rng: Request("", b"smiles=CCO", "application/x-www-form-urlencoded"),
    lambda rng: Request("", _bytes({"graphs": [{"nodes": 1, "node_labels": [[0] * 9]}]}), is_good=True),
)


@contextmanager
def service(model: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """``mnagt serve`` on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mnagt", "serve", str(model), "--port", str(port), *words]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while started.poll() is None:
            time.sleep(0.1)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield f"http://127.0.0.1:{port}", started
    finally:
        started.terminate()
        started.wait()


def resident(process: "subprocess.Popen[bytes]") -> float:
    """MiB in memory."""
    fields = Path(f"/proc/{process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def load(address: str, seconds: float, per_second: int) -> dict[str, float]:
    """Requests at their time, open loop; latencies in ms."""
    import httpx

    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=30) as client:

        async def ask(at: float, smiles: str) -> float:
            await asyncio.sleep(at - time.perf_counter())
            answer = await client.post("/predict", json={"smiles": [smiles]})
            answer.raise_for_status()
            return (time.perf_counter() - at) * 1000

        for smiles in DRUGS:  # warm-up
            await ask(time.perf_counter(), smiles)
        start, count = time.perf_counter() + 0.1, int(seconds * per_second)
        requests = (ask(start + i / per_second, smiles) for i, smiles in zip(range(count), itertools.cycle(DRUGS)))
        taken = sorted(await asyncio.gather(*requests))
    return {
        "requests": count,
        "p50_ms": statistics.median(taken),
        "p95_ms": taken[int(0.95 * count)],
        "p99_ms": taken[int(0.99 * count)],
        "max_ms": taken[-1],
    }


async def pester(address: str, requests: list[Request], at_once: int = 8) -> tuple[Counter[int], list[str]]:
    """The statuses of the answers, and what was wrong with any."""
    import httpx

    statuses: Counter[int] = Counter()
    wrong, waiting = [], iter(requests)

    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def caller() -> None:
            for request in waiting:
                answer = await client.post(request.path, content=request.body, headers={"Content-Type": request.kind})
                statuses[answer.status_code] += 1
                is_right = answer.status_code == 200 if request.is_good else 400 <= answer.status_code < 500
                if not is_right:
                    wrong.append(f"{answer.status_code} for {request.path} {request.body[:120]!r}")

        await asyncio.gather(*(caller() for _ in range(at_once)))
    return statuses, wrong


def single(folder: Path, exported: Path) -> dict[str, float]:
    """Median ms of a molecule, answered alone, with one thread."""
    import torch

    from mnagt.data.readers.smiles import read_smiles
    from mnagt.inference.export import OnnxModel, export_onnx
    from mnagt.inference.model_folder import load_model
    from mnagt.inference.outputs import compute_outputs

    torch.set_num_threads(1)
    trained = load_model(folder)
    export_onnx(trained, exported)
    onnx, graphs = OnnxModel(exported, trained), read_smiles(DRUGS).graphs
    places = itertools.cycle(range(len(graphs)))

    def batch() -> Any:
        return graphs.batch(torch.tensor([next(places)]))

    def model() -> Any:
        with torch.inference_mode():
            return trained.model(batch())

    variants = {
        "model_ms": model,
        "onnx_ms": lambda: onnx(batch()),
        "predict_ms": lambda: trained.predict(graphs, torch.tensor([next(places)])),
        "predict_onnx_ms": lambda: trained.decode(compute_outputs(onnx, graphs, torch.tensor([next(places)]))),
    }
    return {name: 1000 * taken for name, taken in common.medians(variants, ROUNDS, warm_up=20).items()}


def save_untrained(folder: Path) -> None:
    """A default model for molecules."""
    import torch

    from mnagt.data.readers.smiles import FEATURES
    from mnagt.inference.model_folder import TrainedModel
    from mnagt.models.registry import build_model, full_settings
    from mnagt.tasks import SingleLabel

    torch.manual_seed(0)
    model = build_model("mnagt", {}, FEATURES, 2).eval()
    TrainedModel(model, SingleLabel(("no", "yes")), "mnagt", full_settings("mnagt", {})).save(folder)


def _format_latencies(loaded: dict[str, float]) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {ms:.1f}" for name, ms in loaded.items()) + " (ms)"


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="of load [30]")
    parser.add_argument("--malformed", type=int, default=10_000, help="bad requests [10000]")
    parser.add_argument("--alone", action="store_true", help="only a single molecule in process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save_untrained(folder)
        alone = single(folder, Path(scratch) / "model.onnx")
        print("one molecule, one thread: " + ", ".join(f"{name[:-3]} {ms:.2f} ms" for name, ms in alone.items()))
        if options.alone:
            common.write(options.out, {"alone": alone})
            return common.exit_if_missed([f"predict {alone['predict_ms']:.1f} ms"] * (alone["predict_ms"] > SINGLE_MS))
        with service(folder, "--onnx", str(Path(scratch) / "model.onnx")) as (address, _):
            with_onnx = asyncio.run(load(address, options.seconds, PER_SECOND))
            print(f"{PER_SECOND} requests a second, by ONNX Runtime: {_format_latencies(with_onnx)}")
        with service(folder) as (address, process):
            under_load = asyncio.run(load(address, options.seconds, PER_SECOND))
            print(f"{PER_SECOND} requests a second: {_format_latencies(under_load)}")
            requests = list(itertools.islice(generate_malformed(), options.malformed))
            warm_up, rest = requests[: len(requests) // 5], requests[len(requests) // 5 :]
            statuses, wrong = asyncio.run(pester(address, warm_up))
            before = resident(process)
            more, also_wrong = asyncio.run(pester(address, rest))
            after, wrong, statuses = resident(process), wrong + also_wrong, statuses + more
            again = asyncio.run(load(address, 2, PER_SECOND))
        print(f"malformed: {dict(sorted(statuses.items()))}; {before:.0f} MiB before, {after:.0f} MiB after")
        print(f"and then: p95 {again['p95_ms']:.1f} ms")
    for line in wrong[:20]:
        print(f"wrong: {line}")
    figures = {
        "alone": alone,
        "load": under_load,
        "load_onnx": with_onnx,
        "statuses": {str(k): v for k, v in statuses.items()},
    }
    common.write(options.out, figures | {"wrong": len(wrong), "mib": {"before": before, "after": after}})
    common.exit_if_missed(
        [f"p95 {under_load['p95_ms']:.0f} ms"] * (under_load["p95_ms"] > P95_MS)
        + [f"predict {alone['predict_ms']:.1f} ms"] * (alone["predict_ms"] > SINGLE_MS)
        + ["ONNX is slower"] * (alone["onnx_ms"] > alone["predict_ms"])
        + [f"{len(wrong)} malformed requests got a wrong answer"] * bool(wrong)
        + [f"memory grew by {after - before:.0f} MiB"] * (after - before > GROWTH_MIB)
    )


if __name__ == "__main__":
    main()
