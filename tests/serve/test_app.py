"""The service answers as the model does, and bad requests get an answer of the 400s."""

import asyncio
import copy
import itertools
import json
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jaxtyping
import pytest
import torch

from mnagt.data.readers.smiles import read_smiles
from mnagt.errors import InputError
from mnagt.inference.export import export_onnx
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model
from mnagt.serve.app import create_app, serve
from mnagt.serve.config import ServeConfig
from mnagt.serve.schemas import PredictRequest
from mnagt.serve.service import Service

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import serving  # type: ignore[import-not-found]

PREFIXES = ("", "/models/{name}", "/models/{name}/versions/{version}")
SMILES = ["CC(=O)Oc1ccccc1C(=O)O", "C", "CC(=O)[O-].[Na+]"]


def read_metric(at: str, name: str) -> float:
    """A number from the metrics."""
    found = re.search(rf"^{re.escape(name)} (.*)$", httpx.get(f"{at}/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_predictions_are_the_models_own(at, molecules):
    answer = httpx.post(f"{at}/predict", json={"smiles": SMILES})
    assert answer.status_code == 200
    columns = molecules.predict(read_smiles(SMILES).graphs)
    for row, prediction in enumerate(answer.json()["predictions"]):
        assert prediction["prediction"] == columns["prediction"][row]
        assert prediction["p(active)"] == pytest.approx(columns["p(active)"][row], abs=1e-5)


def test_molecules_and_graphs_sent_together_are_both_answered(start, molecules):
    """The graphs have no texts, which would be missing from those of the batch."""
    at = start(molecules, window_ms=100)
    bodies = [{"smiles": ["C"]}, {"graphs": [{"nodes": 1, "node_labels": [[0] * 9]}]}] * 4
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda body: httpx.post(f"{at}/predict", json=body).status_code, bodies))
    assert answers == [200] * 8


def test_requests_sent_together_share_batches_and_get_their_own_predictions(start, molecules):
    at = start(molecules, window_ms=50)
    with ThreadPoolExecutor(12) as callers:
        bodies = [[SMILES[i % 3]] * (1 + i % 2) for i in range(12)]
        responses = list(
            callers.map(lambda smiles: httpx.post(f"{at}/predict", json={"smiles": smiles}).json(), bodies)
        )
    alone = [httpx.post(f"{at}/predict", json={"smiles": [smiles]}).json()["predictions"][0] for smiles in SMILES]
    for i, response in enumerate(responses):
        assert len(response["predictions"]) == 1 + i % 2
        assert response["predictions"][0]["p(active)"] == pytest.approx(alone[i % 3]["p(active)"], abs=1e-5)
    assert read_metric(at, "mnagt_batch_requests_count") < 15
    assert read_metric(at, 'mnagt_graphs_total{model="mnagt"}') == 18 + 3


def test_many_nodes_take_several_forward_passes(molecules):
    service = Service(molecules, ServeConfig(max_nodes=16))
    requests = [PredictRequest(smiles=[smiles]) for smiles in ("CCO", "CC", "CO", "CCCC", "C", "CCC", "CN", "CCN")]
    passes: list[int] = []
    handle = molecules.model.register_forward_pre_hook(lambda model, inputs: passes.append(inputs[0].num_nodes))

    async def ask() -> list[Any]:
        return await asyncio.gather(*map(service.predict, requests))

    results = asyncio.run(ask())
    handle.remove()
    assert sum(passes) == 20
    assert 2 <= len(passes) < 8
    assert max(passes) < 16 + 4
    columns = molecules.predict(read_smiles([ask.smiles[0] for ask in requests if ask.smiles]).graphs)
    probabilities = [each[0]["p(active)"] for each in results if isinstance(each, list)]
    assert probabilities == pytest.approx(columns["p(active)"], abs=1e-5)


def test_an_explanation_adds_up(at):
    response = httpx.post(f"{at}/explain", json={"smiles": [SMILES[0]]}).json()
    assert len(response["drawing"]["nodes"]) == len(response["attribution"]) == 13
    assert [len(layer) for layer in response["kernel_weights"]] == [13, 13]
    for layer in response["kernel_weights"]:
        assert all(sum(node) == pytest.approx(1, abs=1e-5) for node in layer)
    labels = [node["label"] for node in response["drawing"]["nodes"]]
    assert sorted(filter(None, labels)) == ["O", "O", "O", "OH"]
    assert sum(order == 2 for *_, order in response["drawing"]["edges"]) == 5  # Kekulé's ring and two C=O
    again = httpx.post(f"{at}/explain", json={"smiles": [SMILES[0]], "target": "active"}).json()
    assert again["explained"]["output"] == "active"


def test_graphs_and_code_are_explained_too(start, plain, namer):
    path = {
        "nodes": 2,
        "edges": [[0, 1]],
        "node_labels": [["C"], ["O"]],
        "node_values": [[0], [1]],
        "edge_labels": [[0]],
    }
    response = httpx.post(f"{start(plain)}/explain", json={"graphs": [path]}).json()
    assert [node["label"] for node in response["drawing"]["nodes"]] == ["C", "O"]
    at = start(namer)
    code = "def f(x):\n    return x\n\ndef g(): ..."
    named = httpx.post(f"{at}/predict", json={"code": code}).json()["predictions"]
    assert [(each["line"], each["function"]) for each in named] == [(1, "f"), (4, "g")]
    assert 0 < named[0]["names"][0]["p"] <= 1
    response = httpx.post(f"{at}/explain", json={"code": code, "which": 1}).json()
    assert response["prediction"]["function"] == "g"
    assert response["drawing"]["nodes"][0]["label"] == "Module"


@pytest.mark.parametrize("path", ["predict", "explain"])
def test_outputs_that_are_not_finite_are_refused(start, molecules, path):
    model = copy.deepcopy(molecules.model)
    torch.nn.init.constant_(model.head[-1].bias, torch.inf)
    answer = httpx.post(f"{start(replace(molecules, model=model))}/{path}", json={"smiles": ["C"]})
    assert answer.status_code == 422
    assert "no finite answer" in answer.json()["detail"]


def test_requests_need_the_token(start, molecules):
    at = start(molecules, token="geheim ñ")
    refused = [
        httpx.post(f"{at}/predict", json={"smiles": ["C"]}),
        httpx.get(f"{at}/metrics"),
        httpx.get(f"{at}/model"),
    ]
    refused.append(httpx.get(f"{at}/model", headers={"Authorization": "Bearer other"}))
    assert {answer.status_code for answer in refused} == {401}
    headers = {b"Authorization": "Bearer geheim ñ".encode()}
    assert httpx.post(f"{at}/predict", json={"smiles": ["C"]}, headers=headers).status_code == 200
    assert httpx.get(f"{at}/health").json() == {"status": "ok"}
    assert httpx.get(at).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ("[" * 100_000, 400, "not JSON: maximum recursion depth exceeded"),
        (b'{"smiles": ["\xff"]}', 400, "not JSON: 'utf-8' codec can't decode byte 0xff in position 13"),
        ('{"level": ' + "9" * 5000 + "}", 400, "not JSON: Exceeds the limit (4300 digits)"),
        ('{"smiles": [1]}', 422, "smiles[0]: Input should be a valid string"),
        ('{"smiles": [["C", 1]]}', 422, "smiles[0]: Input should be a valid string"),
        ('{"graphs": [{"nodes": 1, "node_labels": [[-5]]}]}', 422, "graphs[0].node_labels[0][0]: Input should be gr"),
    ],
)
def test_bodies_that_cannot_be_read_are_told_why(at, body, status, detail):
    answer = httpx.post(f"{at}/predict", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"][: len(detail)]) == (status, detail)


@pytest.mark.parametrize(("name", "value"), [("window_ms", math.inf), ("max_explained", -5)])
def test_settings_under_which_nothing_would_be_answered_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} must be "):
        ServeConfig(**{name: value})


def test_limits_hold(start, molecules):
    at = start(molecules, max_body=100, seconds=0.0001)
    body = json.dumps({"smiles": ["C" * 100]}).encode()
    assert httpx.post(f"{at}/predict", content=body).status_code == 413
    chunked = httpx.post(
        f"{at}/predict", content=iter([body[:60], body[60:]]), headers={"Content-Type": "application/json"}
    )
    assert chunked.status_code == 413
    late = httpx.post(f"{at}/predict", json={"smiles": ["C"]})
    assert late.status_code == 503
    assert "no answer within" in late.json()["detail"]


def test_a_graph_too_large_to_explain_is_refused(start, molecules):
    answer = httpx.post(f"{start(molecules, max_explained=12)}/explain", json={"smiles": [SMILES[0]]})
    assert (answer.status_code, answer.json()["detail"]) == (422, "13 nodes; graphs of up to 12 nodes are explained")


def test_nothing_comes_from_elsewhere(at):
    for path in ("/", "/page.css", "/page.js", "/icon.svg"):
        answer = httpx.get(at + path)
        assert answer.status_code == 200
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        foreign = set(re.findall(r"https?://[\w.]+", answer.text)) - {"http://www.w3.org"}
        assert not foreign
    assert not re.search(
        r"<script>|\son\w+=|style=|eval\(|innerHTML", httpx.get(at).text + httpx.get(f"{at}/page.js").text
    )


def test_openapi_names_what_there_is(at):
    response = httpx.get(f"{at}/openapi.json").json()
    of_model = {f"{prefix}/{end}" for prefix in PREFIXES for end in ("predict", "explain", "model")}
    of_model |= {f"/v2{prefix}{end}" for prefix in PREFIXES[1:] for end in ("", "/ready", "/infer")}
    of_service = {"/models", "/health", "/livez", "/readyz", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready"}
    assert set(response["paths"]) == of_model | of_service
    assert set(response["components"]["schemas"]["PredictRequest"]["properties"]) == {
        "smiles",
        "graphs",
        "code",
        "level",
    }
    assert httpx.get(f"{at}/docs").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ('{"smiles": [', 400, "not JSON, at character 12: Expecting value"),
        ('{"graphs": [{"nodes": 0}]}', 422, "graphs[0].nodes: Input should be greater than or equal to 1"),
        ('{"smiles": ["C"], "colour": 1}', 422, "colour: Extra inputs are not permitted"),
        ("[]", 422, "Input should be a valid dictionary or object to extract fields from"),
    ],
)
def test_a_bad_request_is_told_the_field_and_the_place(at, body, status, detail):
    answer = httpx.post(f"{at}/predict", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})
    assert read_metric(at, f'mnagt_requests_total{{path="/predict",status="{status}"}}') > 0


@pytest.mark.parametrize("seed", [1])
def test_malformed_requests_get_a_400_and_leave_no_trace(at, seed):
    requests = list(itertools.islice(serving.generate_malformed(seed), 300))
    statuses, wrong = asyncio.run(serving.pester(at, requests))
    assert not wrong
    assert statuses.total() == 300
    assert httpx.post(f"{at}/predict", json={"smiles": ["C"]}).status_code == 200
    assert httpx.put(f"{at}/predict").status_code == 405
    assert httpx.get(f"{at}/nothing").status_code == 404


def test_the_export_of_a_model_predicts_the_same(start, plain, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # while a model is traced sizes are symbols
    torch.manual_seed(1)
    other = build_model("gin", {}, plain.model.features, 2).eval()
    gin, path = TrainedModel(other, plain.task, "gin", {}), tmp_path / "gin.onnx"
    export_onnx(gin, path)
    single = {"nodes": 1, "node_labels": [[1]], "node_values": [[0.5]]}
    both = [start(gin), start(gin, onnx=str(path))]
    one, two = (httpx.post(f"{at}/predict", json={"graphs": [single]}).json()["predictions"][0] for at in both)
    assert one["p(a)"] == pytest.approx(two["p(a)"], abs=1e-5)
    with pytest.raises(InputError, match=r"gin.onnx: on graphs of .* off its model, mnagt; export the model again"):
        create_app(plain, ServeConfig(onnx=str(path)))
    path.write_bytes(b"no")
    with pytest.raises(InputError, match=r"gin.onnx: not run \(Error parsing"):
        create_app(gin, ServeConfig(onnx=str(path)))


def test_a_port_in_use_is_named(at, molecules, tmp_path):
    molecules.save(tmp_path / "model")
    port = int(at.rsplit(":", 1)[1])
    with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}: .* choose another --host or --port"):
        serve(tmp_path / "model", ServeConfig(port=port))


@pytest.mark.parametrize("setting", [{"port": 0}, {"port": 70000}, {"seconds": 0.0}, {"max_nodes": 0}, {"workers": 0}])
def test_settings_that_make_no_sense_are_refused(setting):
    with pytest.raises(InputError):
        ServeConfig(**setting)
