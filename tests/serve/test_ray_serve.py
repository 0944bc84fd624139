"""The service as a deployment of Ray Serve; tests/reliability/lost_replica.py runs it on a cluster."""

import importlib.util
import sys

import pytest

from mnagt.errors import InputError
from mnagt.serve.config import ServeConfig
from mnagt.serve.ray_serve import build, make_deployment


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


@pytest.mark.filterwarnings("ignore")  # of Ray itself
@pytest.mark.skipif(importlib.util.find_spec("grpc_reflection") is None, reason="ray[serve] is not installed")
def test_a_deployment_has_what_was_asked_for(molecules, tmp_path):
    molecules.save(tmp_path / "model")
    made = make_deployment(tmp_path / "model", ServeConfig(max_waiting=7), replicas=3, cpus=0.5)
    deployment = made._bound_deployment
    assert (deployment.num_replicas, deployment.ray_actor_options["num_cpus"]) == (3, 0.5)
    assert deployment.max_ongoing_requests == 7
    with pytest.raises(InputError, match="no such folder"):
        make_deployment(tmp_path / "none")
