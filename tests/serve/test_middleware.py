"""Requests for other hosts, slow senders and overload are refused before they cost anything; all others are logged."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn

from mnagt.serve.app import create_app, serve, uvicorn_options
from mnagt.serve.config import ServeConfig
from mnagt.serve.metrics import Metrics

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(at: str, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(at.rsplit(":", 1)[1])), timeout=20)
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize("host", ["attacker.example", "attacker.example:8000", "127.0.0.1.attacker.example", ""])
def test_other_hosts_are_refused(at, host):
    """A page of another site that lets its name point here gets no answer."""
    answer = httpx.get(f"{at}/model", headers={"Host": host})
    assert answer.status_code == 421


def test_a_body_that_is_announced_as_too_large_is_not_waited_for(start, molecules):
    at = start(molecules, max_body=100)
    with connect(at, HEAD + b"Content-Length: 101\r\n\r\n") as connection:
        assert b" 413 " in connection.recv(2000)


def test_hosts_are_added(start, molecules):
    at = start(molecules, hosts=("graphs.example:8000",))
    assert httpx.get(f"{at}/livez", headers={"Host": "Graphs.example:443"}).status_code == 200
    assert httpx.get(f"{at}/livez", headers={"Host": socket.gethostname()}).status_code == 200


def test_slow_senders_are_sent_away(start, molecules):
    at = start(molecules, header_seconds=0.5, body_seconds=0.5)
    with connect(at, HEAD) as head, connect(at, HEAD + b"Content-Length: 99\r\n\r\n{") as body:
        assert b"408" in body.recv(1000)
        begin, is_open = time.monotonic(), True
        while is_open:
            assert time.monotonic() - begin < 20
            try:
                head.sendall(b"X: y\r\n")  # a little at a time does not help
            except OSError:
                is_open = False
            time.sleep(0.05)
    assert httpx.get(f"{at}/livez").status_code == 200


def test_slow_senders_do_not_keep_the_service_from_ending(molecules):
    config = ServeConfig(shutdown_seconds=1)
    server = uvicorn.Server(uvicorn.Config(create_app(molecules, config), port=0, **uvicorn_options(config)))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    at = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    slow = [connect(at, HEAD + end) for end in (b"", b"Content-Length: 99\r\n\r\n{") for _ in range(10)]
    time.sleep(0.2)
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
    for each in slow:
        each.close()


def test_idle_connections_outlive_the_five_seconds_that_clients_keep_them(start, molecules):
    with connect(start(molecules), b"") as connection:
        for pause in (5.2, 0):
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in connection.recv(4000)
            time.sleep(pause)


RAISE = """
import resource
from mnagt.serve.app import MAX_FILES, raise_file_limit
before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
raise_file_limit()
soft, after = resource.getrlimit(resource.RLIMIT_NOFILE)
assert (soft, after) == (min(hard, MAX_FILES) if hard >= 0 else MAX_FILES, hard), (soft, after)
"""


def test_as_many_connections_as_the_system_allows():
    subprocess.run([sys.executable, "-c", RAISE], check=True)


def test_connections_without_requests_are_closed(start, molecules):
    at = start(molecules, idle_seconds=1)
    with connect(at, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") as idle:
        answer = b""
        while more := idle.recv(1000):  # until the service closes it: the timeout of the socket is an error
            answer += more
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" not in answer.lower()


def test_clients_that_do_not_read_are_sent_away(start, molecules):
    """They would hold a place among the requests that may wait for ever, with responses that fill all buffers."""
    at = start(molecules, max_waiting=2, response_seconds=2.0)
    smiles = {"name": "smiles", "shape": [1], "datatype": "BYTES", "data": ["C"]}
    body = json.dumps({"id": "x" * 900_000, "inputs": [smiles]}).encode()  # the response has the id too
    head = b"POST /v2/models/mnagt/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    senders = ThreadPoolExecutor(2)
    held = [connect(at, b"") for _ in range(2)]
    sent = [senders.submit(each.sendall, (head + body) * 30) for each in held]
    statuses, begin = [], time.monotonic()
    while time.monotonic() - begin < 20 and statuses[-3:] != [429, 200, 200]:
        statuses.append(httpx.post(f"{at}/predict", json={"smiles": ["C"]}).status_code)
        time.sleep(0.2)
    for each in held:
        each.close()
    senders.shutdown()
    assert statuses[-3:] == [429, 200, 200]
    assert all(isinstance(each.exception(), ConnectionError) for each in sent)


def test_more_than_may_wait_are_refused_before_they_are_read(start, molecules):
    at = start(molecules, max_waiting=2)
    held = [connect(at, HEAD + b"Content-Length: 99\r\n\r\n{") for _ in range(2)]
    time.sleep(0.2)
    refused = connect(at, HEAD + b"Content-Length: 999999\r\n\r\n")  # no body is needed for the answer
    answer = refused.recv(2000)
    assert b" 429 " in answer
    assert b"retry-after: 1" in answer.lower()
    for each in (*held, refused):
        each.close()
    for _ in range(50):
        if httpx.post(f"{at}/predict", json={"smiles": ["C"]}).status_code == 200:
            break
    else:
        pytest.fail("connections that are closed wait for ever")


def test_requests_have_ids_and_are_logged(start, molecules, caplog):
    at = start(molecules, access_log=True)
    access = logging.getLogger("mnagt.access")
    access.addHandler(caplog.handler)
    given = httpx.post(f"{at}/predict", json={"smiles": ["C"]}, headers={"X-Request-ID": "abc-1"})
    made = httpx.get(f"{at}/nothing", headers={"X-Request-ID": "a b\t<"})
    for _ in range(200):  # a request is logged once its response has been sent
        if sum(record.name == "mnagt.access" for record in caplog.records) == 2:
            break
        time.sleep(0.02)
    access.removeHandler(caplog.handler)
    assert given.headers["x-request-id"] == "abc-1"
    assert len(made.headers["x-request-id"]) == 32
    one, two = (json.loads(record.message) for record in caplog.records if record.name == "mnagt.access")
    assert (one["id"], one["method"], one["path"], one["status"]) == ("abc-1", "POST", "/predict", 200)
    assert (two["id"], two["status"], two["client"]) == (made.headers["x-request-id"], 404, "127.0.0.1")


def test_probes_and_gauges(at):
    assert httpx.get(f"{at}/livez").status_code == httpx.get(f"{at}/readyz").status_code == 200
    httpx.post(f"{at}/predict", json={"smiles": ["C"]})
    lines = dict(line.rsplit(" ", 1) for line in httpx.get(f"{at}/metrics").text.splitlines() if line[0] != "#")
    assert float(lines["process_resident_memory_bytes"]) > 1e8
    assert (lines["mnagt_waiting_requests"], lines["mnagt_workers"]) == ("0", "1")
    assert float(lines['mnagt_request_seconds_count{model="mnagt"}']) >= 1
    assert (
        lines['mnagt_request_seconds_bucket{model="mnagt",le="+Inf"}']
        == lines['mnagt_request_seconds_count{model="mnagt"}']
    )


def test_metrics_are_summed_over_processes(tmp_path, monkeypatch):
    first, other = Metrics(tmp_path), Metrics(tmp_path)
    first.count("mnagt_graphs_total", 3)
    other.count("mnagt_graphs_total", 4)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 2**30)  # a process that has ended
        other.save()
    first.save()
    text = first.to_text()
    assert "\nmnagt_graphs_total 7\n" in text
    assert "\nmnagt_workers 1\n" in text


def test_metrics_are_written_again_after_a_full_disk(tmp_path, caplog):
    metrics, folder = Metrics(tmp_path / "later"), tmp_path / "later"
    metrics.save()
    metrics.save()
    assert caplog.text.count("metrics of the worker processes are not written") == 1
    folder.mkdir()
    metrics.save()
    assert len(list(folder.glob("*.json"))) == 1


def test_the_parent_of_worker_processes_loads_no_model(molecules, tmp_path, monkeypatch):
    molecules.save(tmp_path / "model")
    started = []

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("loaded here")

    monkeypatch.setattr("mnagt.serve.app.create_app", refuse)
    monkeypatch.setattr("mnagt.serve.app.load_models", refuse)
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: started.append((app, options["workers"])))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve(tmp_path / "model", ServeConfig(workers=2, port=port))
    assert started == [("mnagt.serve.app:create_worker_app", 2)]


@pytest.mark.slow
def test_two_workers_share_their_metrics(molecules, tmp_path):
    molecules.save(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mnagt", "serve", str(tmp_path / "model"), "--workers", "2", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        at, start = f"http://127.0.0.1:{port}", time.monotonic()
        while time.monotonic() - start < 300:
            assert process.poll() is None
            try:
                if httpx.get(f"{at}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        time.sleep(5)
        with ThreadPoolExecutor(4) as callers:
            list(callers.map(lambda _: httpx.post(f"{at}/predict", json={"smiles": ["C"]}), range(20)))
        time.sleep(2)
        text = httpx.get(f"{at}/metrics").text
        assert '\nmnagt_graphs_total{model="mnagt"} 20\n' in text
        assert "\nmnagt_workers 2\n" in text
    finally:
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert b"/openapi.json describes requests" in printed
