"""The Open Inference Protocol: the same predictions as tensors."""

import json
from dataclasses import replace

import httpx
import pytest
import torch

from mnagt.data.readers.smiles import read_smiles
from mnagt.data.splits import Split
from mnagt.inference.domain import fit_domain
from mnagt.serve.app import start_models
from mnagt.serve.config import ServeConfig

PREDICT = "/v2/models/mnagt/infer"


def tensors(smiles: list[str], **more: object) -> dict:
    return {"inputs": [{"name": "smiles", "shape": [len(smiles)], "datatype": "BYTES", "data": smiles}], **more}


def columns(answer: httpx.Response) -> dict[str, list]:
    assert answer.status_code == 200, answer.text
    return {each["name"]: each["data"] for each in answer.json()["outputs"]}


def test_tensors_hold_the_predictions(at):
    smiles = ["CCO", "c1ccccc1"]
    rows = httpx.post(f"{at}/predict", json={"smiles": smiles}).json()["predictions"]
    answer = httpx.post(f"{at}{PREDICT}", json=tensors(smiles, id="42"))
    expected = {name: pytest.approx([row[name] for row in rows], abs=1e-6) for name in rows[0]}
    assert columns(answer) == expected | {"error": ["", ""]}
    body = answer.json()
    assert (body["id"], body["model_name"], body["model_version"]) == ("42", "mnagt", "1")
    assert [(each["datatype"], each["shape"]) for each in body["outputs"]] == [
        ("BYTES", [2]),
        ("FP64", [2]),
        ("FP64", [2]),
        ("BYTES", [2]),
    ]
    some = httpx.post(f"{at}/v2/models/mnagt/versions/1/infer", json=tensors(smiles, outputs=[{"name": "p(active)"}]))
    assert list(columns(some)) == ["p(active)"]
    bare = httpx.post(f"{at}{PREDICT}", content=json.dumps(tensors(smiles)))  # as Triton's client sends it
    assert columns(bare) == columns(answer)
    nested = tensors(smiles)
    nested["inputs"][0] |= {"shape": [2, 1], "data": [["CCO"], ["c1ccccc1"]]}
    assert columns(httpx.post(f"{at}{PREDICT}", json=nested)) == columns(answer)


def test_graphs_are_json_texts_and_code_is_one(start, plain, namer):
    at, path = start(plain), {"nodes": 1, "node_labels": [["C"]], "node_values": [[0]]}
    body = {"inputs": [{"name": "graphs", "shape": [1], "datatype": "BYTES", "data": [json.dumps(path)]}]}
    same = httpx.post(f"{at}/predict", json={"graphs": [path]}).json()["predictions"][0]
    assert columns(httpx.post(f"{at}{PREDICT}", json=body))["p(a)"] == pytest.approx([same["p(a)"]], abs=1e-6)
    body["inputs"][0]["data"] = ['{"nodes": 0}']
    refused = httpx.post(f"{at}{PREDICT}", json=body)
    assert refused.json() == {"error": "inputs[0].data[0], nodes: Input should be greater than or equal to 1"}
    code = {"inputs": [{"name": "code", "shape": [1], "datatype": "BYTES", "data": ["def f(x):\n    return x"]}]}
    named = columns(httpx.post(f"{start(namer)}{PREDICT}", json=code))
    assert (named["line"], named["function"]) == ([1], ["f"])
    assert json.loads(named["names"][0])[0]["p"] > 0


def test_parameters_may_be_null(at):
    body = tensors(["C"], parameters=None, outputs=[{"name": "error", "parameters": None}])
    body["inputs"][0] |= {"parameters": None}
    assert columns(httpx.post(f"{at}{PREDICT}", json=body)) == {"error": [""]}


def test_a_column_is_returned_once(at):
    """Else a request of 1 MB gets a response of 50."""
    answer = httpx.post(f"{at}{PREDICT}", json=tensors(["C"], outputs=[{"name": "prediction"}] * 2))
    assert (answer.status_code, "a name is there twice" in answer.json()["error"]) == (422, True)


def test_a_model_that_was_removed_since_it_was_chosen_has_its_own_version(molecules):
    models, _ = start_models(molecules, ServeConfig())
    service = models.choose()
    models.table = {}
    assert models.list_versions(service) == ["1"]
    service.close()


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"name": "level"}, 422, "expected smiles, graphs or code, got 'level'"),
        ({"datatype": "FP32"}, 422, "expected texts of datatype BYTES"),
        ({"data": [1]}, 422, "expected texts of datatype BYTES"),
        ({"shape": [2]}, 422, "1 texts, and the shape says 2"),
        ({"shape": [2**31]}, 422, "inputs[0].shape[0]: Input should be less than"),
        ({"shape": [1] * 9}, 422, "inputs[0].shape: List should have at most 8 items"),
        ({"data": ["C(("]}, 422, "smiles[0]:"),
        ({"name": "code"}, 422, "code: this model does not read it"),
    ],
)
def test_bad_requests_are_told_why(at, change, status, error):
    body = tensors(["C"])
    body["inputs"][0] |= change
    answer = httpx.post(f"{at}{PREDICT}", json=body)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert error in answer.json()["error"]


def test_errors_of_the_protocol_are_called_error(start, molecules):
    at = start(molecules, token="secret")
    assert "error" in httpx.post(f"{at}{PREDICT}", json=tensors(["C"])).json()
    assert httpx.get(f"{at}/v2/models/mnagt").status_code == 401
    assert httpx.get(f"{at}/v2/health/ready").status_code == 200
    known = {"Authorization": "Bearer secret"}
    answers = [
        httpx.get(f"{at}/v2/models/other", headers=known),
        httpx.post(f"{at}{PREDICT}", content="{", headers=known | {"Content-Type": "application/json"}),
        httpx.post(f"{at}{PREDICT}", json=tensors(["C"], outputs=[{"name": "x"}]), headers=known),
        httpx.get(f"{at}/v2", headers={"Host": "attacker.example"}),
    ]
    assert [each.status_code for each in answers] == [404, 400, 422, 421]
    assert all(list(each.json()) == ["error"] for each in answers)


def test_the_metadata_names_what_comes(start, molecules):
    dataset = read_smiles(["C" * n for n in range(1, 20)]).graphs
    split = Split(torch.arange(10), torch.arange(10, 15), torch.arange(15, 19))
    at = start(replace(molecules, domain=fit_domain(molecules.model, dataset, split)))
    assert httpx.get(f"{at}/v2").json()["extensions"] == []
    assert httpx.get(f"{at}/v2/models/mnagt/ready").json() == {"name": "mnagt", "ready": True}
    about = httpx.get(f"{at}/v2/models/mnagt").json()
    assert (about["versions"], about["platform"]) == (["1"], "mnagt")
    assert [each["name"] for each in about["inputs"]] == ["smiles", "graphs"]
    told = {each["name"]: each["datatype"] for each in about["outputs"]}
    answer = httpx.post(f"{at}{PREDICT}", json=tensors(["CC"]))
    assert told == {each["name"]: each["datatype"] for each in answer.json()["outputs"]}
    assert "distance" in told
