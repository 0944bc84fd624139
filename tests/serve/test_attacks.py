"""Requests made to keep the service busy cost little, and others are answered meanwhile."""

import gc
import json
import threading
import time

import httpx
import pytest
import torch
from serve.conftest import SMALL
from serve.test_middleware import HEAD, connect
from serve.test_open_inference import tensors

from mnagt.data.readers.smiles import FEATURES
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model, full_settings
from mnagt.serve.schemas import count_atoms
from mnagt.serve.service import MAX_EXPLANATIONS
from mnagt.tasks import SingleLabel

FLOOD = {"smiles": ["c1ccccc1" * 240] * 256}
CODE_FLOOD = {"code": "a=b\n" * 160_000}
FUNCTION = {"code": "def f(x):\n    return x"}
LARGEST = {"smiles": ["C" * 250]}


def processor_seconds(call):
    start = time.process_time()
    return call(), time.process_time() - start


def test_molecules_beyond_the_limits_are_refused_before_they_are_read(at):
    answer, seconds = processor_seconds(lambda: httpx.post(f"{at}/predict", json=FLOOD, timeout=60))
    assert answer.status_code == 422
    assert "491,520 characters" in answer.json()["detail"]
    assert seconds < 1


@pytest.mark.parametrize(
    ("smiles", "detail"),
    [
        (["C" * 1001], "1,001 nodes in one graph, at most 1,000"),
        (["C" * 900] * 5, "4,500 nodes, at most 4,000"),
        (["((((" * 400] * 20 + ["C"], "32,001 characters, at most 32,000"),
    ],
)
def test_atoms_and_characters_are_counted_in_all(at, smiles, detail):
    answer, seconds = processor_seconds(lambda: httpx.post(f"{at}/predict", json={"smiles": smiles}, timeout=60))
    assert (answer.status_code, detail in answer.json()["detail"]) == (422, True)
    assert seconds < 0.5


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", '{"smiles": [' + "1," * 490_000 + "1]}"),
        ("/predict", '{"graphs": [' + '{"nodes":1},' * 80_000 + '{"nodes":1}]}'),
        ("/predict", '{"graphs": [{"nodes": 1, "edges": [' + "[]," * 320_000 + "[]]}]}"),
        ("/v2/models/mnagt/infer", json.dumps(tensors(["C1"] * 150_000))),
    ],
    ids=["not-texts", "many-graphs", "no-edges", "many-texts"],
)
def test_a_body_of_many_errors_is_refused_at_the_first(at, path, body):
    """Bodies are validated in the event loop: nobody else is answered meanwhile."""
    gc.freeze()  # what other tests have left: a service has its process to itself
    headers = {"Content-Type": "application/json"}
    answer, seconds = processor_seconds(lambda: httpx.post(at + path, content=body, headers=headers, timeout=60))
    assert answer.status_code == 422
    assert seconds < 0.25


def test_molecules_whose_descriptors_would_take_minutes_are_refused(start):
    """RDKit's take 0.3 s for 250 atoms, 3 s for 500, and over 20 s for 1,000, in the thread that predicts."""
    torch.manual_seed(0)
    settings = {**SMALL, "descriptors": ("rdkit2d",)}
    model = build_model("mnagt", settings, FEATURES, 2).eval()
    trained = TrainedModel(model, SingleLabel(("a", "b")), "mnagt", full_settings("mnagt", settings), {}, {})
    at = start(trained, max_described=100)
    answer, seconds = processor_seconds(lambda: httpx.post(f"{at}/predict", json={"smiles": ["C" * 900, "CO"]}))
    large, small = answer.json()["predictions"]
    assert large == {"error": "900 nodes in one graph, at most 100 are allowed"}
    assert set(small) == {"prediction", "p(a)", "p(b)"}
    assert seconds < 1
    assert httpx.get(f"{at}/model").json()["limits"]["nodes_in_one_graph"] == 100


def test_a_body_in_tiny_chunks_is_refused(at):
    """A megabyte of them costs seconds of the event loop, though none is large."""

    def send(text: str, size: int) -> httpx.Response:
        body = text.encode()
        pieces = (body[start : start + size] for start in range(0, len(body), size))
        return httpx.post(f"{at}/predict", content=pieces, headers={"Content-Type": "application/json"}, timeout=60)

    good = json.dumps({"smiles": ["C"]})
    assert send(good, 1).status_code == 200
    assert send(good + " " * 100_000, 50).status_code == 200
    refused = send(good + " " * 5_000, 1)
    assert (refused.status_code, refused.text) == (400, "Invalid HTTP request received.")


def test_code_beyond_the_limits_is_refused_before_it_is_parsed(start, namer):
    at = start(namer)
    answer, seconds = processor_seconds(lambda: httpx.post(f"{at}/predict", json=CODE_FLOOD, timeout=60))
    assert (answer.status_code, answer.json()["detail"][:24]) == (422, "code: 640,000 characters")
    assert seconds < 0.5


@pytest.mark.parametrize(
    ("model", "flood", "ordinary"), [("molecules", FLOOD, LARGEST), ("namer", CODE_FLOOD, FUNCTION)]
)
def test_others_are_answered_while_a_flood_is_read(start, request, model, flood, ordinary):
    at, is_over, refused = start(request.getfixturevalue(model)), threading.Event(), []

    def send_flood() -> None:
        with httpx.Client(timeout=60) as client:
            while not is_over.is_set():
                refused.append(client.post(f"{at}/predict", json=flood).status_code)

    senders = [threading.Thread(target=send_flood) for _ in range(4)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(5):
            start_of_request = time.monotonic()
            assert httpx.post(f"{at}/predict", json=ordinary, timeout=60).status_code == 200
            assert time.monotonic() - start_of_request < 2
    finally:
        is_over.set()
        for sender in senders:
            sender.join()
    assert set(refused) == {422}


@pytest.mark.parametrize(
    "smiles", ["CC(=O)[O-].[Na+]", "C[C@@H](Cl)c1ccccc1Br", "[H]C([H])=O", "*c1nc[se]c1", "[2H]O[2H]"]
)
def test_atoms_are_counted_as_rdkit_counts_them(smiles):
    from rdkit.Chem import MolFromSmiles

    assert count_atoms(smiles) == MolFromSmiles(smiles).GetNumAtoms()


@pytest.mark.parametrize("who", ["client", "service"])
def test_an_explanation_that_nobody_waits_for_ends_at_its_next_step(start, molecules, who):
    at, steps, is_given_up = start(molecules, seconds=60 if who == "client" else 2), [], threading.Event()

    def hold(*args: object) -> None:
        """Wait in the first step until the request has been given up."""
        steps.append(threading.current_thread().name)
        is_given_up.wait(30)

    handle = molecules.model.head.register_forward_hook(hold)
    try:
        if who == "client":
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{at}/explain", json=LARGEST, timeout=1)
            time.sleep(0.2)  # until the service has noticed
        else:
            assert httpx.post(f"{at}/explain", json=LARGEST, timeout=60).status_code == 503
        is_given_up.set()
        assert httpx.post(f"{at}/predict", json={"smiles": ["C"]}, timeout=60).status_code == 200
        time.sleep(0.2)
    finally:
        handle.remove()
    assert sum(name.startswith("worker") for name in steps) <= 4  # three predictions; of the path at most one


def test_explanations_of_clients_that_have_left_do_not_delay_the_next(start, molecules):
    """As many as may wait are asked for and abandoned; without an end to them the next would wait for all."""
    at, body = start(molecules, seconds=120), json.dumps(LARGEST).encode()
    begin = time.monotonic()
    assert httpx.post(f"{at}/explain", json=LARGEST, timeout=120).status_code == 200
    whole = time.monotonic() - begin
    head = HEAD.replace(b"/predict", b"/explain") + b"Content-Length: %d\r\n\r\n" % len(body)
    left = [connect(at, head + body) for _ in range(MAX_EXPLANATIONS)]
    while read_waiting(at) < MAX_EXPLANATIONS:
        time.sleep(0.01)
    for each in left:
        each.close()
    begin, status = time.monotonic(), 429
    while status == 429:  # until the service has noticed
        status = httpx.post(f"{at}/explain", json={"smiles": ["CO"]}, timeout=120).status_code
    assert status == 200
    assert time.monotonic() - begin < 2 * whole
    assert read_waiting(at) == 0


def read_waiting(at: str) -> int:
    text = httpx.get(f"{at}/metrics").text
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("mnagt_waiting_requests ")))
