"""The service as a deployment of Ray Serve; tests/reliability/lost_replica.py runs it on a cluster."""

import importlib.util
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mnagt.errors import InputError
from mnagt.experiments.executors import RAY_ENVIRONMENT
from mnagt.serve.config import ServeConfig
from mnagt.serve.ray_serve import build, make_deployment

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray itself
with_ray_serve = pytest.mark.skipif(
    importlib.util.find_spec("grpc_reflection") is None, reason="ray[serve] is not installed"
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "which model"),
        ({"model": "m", "port": "80"}, "unknown: port; give model, replicas, cpus, settings=FILE.toml"),
        ({"model": "m", "replicas": "many"}, "replicas and cpus are numbers: .*'many'"),
        ({"model": "m", "settings": "none.toml"}, "none.toml"),
    ],
)
def test_wrong_words_are_named(words, message):
    with pytest.raises(InputError, match=message):
        build(words)


def test_settings_come_from_a_file(tmp_path):
    (tmp_path / "serve.toml").write_text("max_graphs = 0\n")
    with pytest.raises(InputError, match=r"serve\.toml.*max_graphs"):
        build({"model": "m", "settings": str(tmp_path / "serve.toml")})


def test_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    with pytest.raises(InputError, match=r"pip install 'ray\[serve\]'"):
        make_deployment(tmp_path)


@pytest.fixture
def model(molecules, tmp_path) -> str:
    molecules.save(tmp_path / "model")
    return str(tmp_path / "model")


@with_ray_serve
def test_a_deployment_has_what_was_asked_for(model, tmp_path):
    made = make_deployment(model, ServeConfig(max_waiting=7), replicas=3, cpus=0.5)
    deployment = made._bound_deployment
    assert (deployment.num_replicas, deployment.ray_actor_options["num_cpus"]) == (3, 0.5)
    assert (deployment.max_ongoing_requests, deployment.max_queued_requests) == (7, 7)
    with pytest.raises(InputError, match="no such folder"):
        make_deployment(tmp_path / "none")


@with_ray_serve
@pytest.mark.parametrize("settings", [{"tls_cert": "cert.pem"}, {"workers": 4}, {"host": "0.0.0.0", "port": 80}])
def test_what_ray_decides_is_not_ignored_in_silence(model, settings):
    with pytest.raises(InputError, match=f"{', '.join(settings)}: this is Ray's to decide"):
        make_deployment(model, ServeConfig(**settings))


@with_ray_serve
def test_a_service_without_a_token_is_reported(model, monkeypatch, caplog):
    make_deployment(model)
    assert "set MNAGT_TOKEN" in caplog.text
    caplog.clear()
    monkeypatch.setenv("MNAGT_TOKEN", "0123456789abcdef")
    make_deployment(model)
    assert not caplog.text


@pytest.mark.slow
@with_ray_serve
def test_requests_beyond_the_limits_of_a_cluster_are_refused(model, tmp_path, monkeypatch):
    """On a node with one replica: one request is computed, one waits, and of the others none is kept waiting."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "serve.toml").write_text('max_waiting = 1\ntokens = "tokens.toml"\n')
    (tmp_path / "tokens.toml").write_text('[alice]\ntoken = "alice-0123456789abc"\nper_minute = 1e6\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MNAGT_TOKEN", "0123456789abcdef")
    for name, value in RAY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    import ray
    from ray import serve

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(build({"model": "model", "replicas": "1", "settings": "serve.toml"}))
        headers, body = {"Authorization": "Bearer 0123456789abcdef"}, {"smiles": ["C" * 250]}

        def explain(_: object = None) -> int:
            return httpx.post(f"http://127.0.0.1:{port}/explain", json=body, headers=headers, timeout=60).status_code

        assert explain() == 200
        headers["Authorization"] = "Bearer alice-0123456789abc"
        with ThreadPoolExecutor(12) as callers:
            statuses = Counter(callers.map(explain, range(12)))
        assert set(statuses) == {200, 503}
        assert statuses[503] >= 8
        headers["Authorization"] = "Bearer of nobody"
        assert explain() == 401
    finally:
        serve.shutdown()
        ray.shutdown()
