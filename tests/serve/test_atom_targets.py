"""The service answers with a list for each molecule, of a number for each atom or bond."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

SMILES = ["CCO", "C", "CC(=O)Oc1ccccc1C(=O)O"]
SIZES = [3, 1, 13]


def test_lists_are_those_of_the_model(start, charges):
    at = start(charges)
    expected = charges.predict(SMILES)
    rows = httpx.post(f"{at}/predict", json={"smiles": [*SMILES, "C1CC"]}).json()["predictions"]
    assert rows[3].keys() == {"error"}
    for row, numbers, distance, size in zip(rows, expected["charge"], expected["distance"], SIZES, strict=False):
        assert len(row["charge"]) == size
        assert row["charge"] == pytest.approx(numbers, abs=1e-5)
        assert row["distance"] == pytest.approx(distance, rel=1e-3)
    assert 'mnagt_graphs_by_bin_total{model="mnagt"' in httpx.get(f"{at}/metrics").text


def test_requests_that_are_computed_together_keep_the_order_of_their_bonds(start, lengths):
    at, rings = start(lengths, window_ms=200), ["C1CC1C", "OC1CCC1", "C1CC2CC1CC2"]
    requests = [{"smiles": [smiles, "C"]} for smiles in rings]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda body: httpx.post(f"{at}/predict", json=body, timeout=60).json(), requests))
    for smiles, answer in zip(rings, answers, strict=True):
        (expected, nothing), rows = lengths.predict([smiles, "C"])["length"], answer["predictions"]
        assert [rows[0]["length"], rows[1]["length"]] == [pytest.approx(expected, abs=1e-5), nothing]
        assert nothing == []
    assert httpx.get(f"{at}/model").json()["reads"] == ["smiles"]
    refused = httpx.post(f"{at}/predict", json={"graphs": [{"nodes": 1, "edges": [], "node_labels": [[0] * 9]}]})
    assert refused.status_code == 422


def test_explanations_are_refused_and_not_offered(start, charges, molecules):
    at = start(charges)
    answer = httpx.post(f"{at}/explain", json={"smiles": ["CCO"]})
    assert answer.status_code == 422
    assert "explanations are for one value of each graph" in answer.text
    assert not httpx.get(f"{at}/model").json()["explains"]
    assert httpx.get(f"{start(molecules)}/model").json()["explains"]


def test_the_open_inference_protocol_has_lists_as_texts(start, charges):
    at = f"{start(charges)}/v2/models/mnagt"
    assert {"name": "charge", "datatype": "BYTES", "shape": [-1]} in httpx.get(at).json()["outputs"]
    body = {"inputs": [{"name": "smiles", "datatype": "BYTES", "shape": [3], "data": SMILES}]}
    outputs = {each["name"]: each for each in httpx.post(f"{at}/infer", json=body).json()["outputs"]}
    assert outputs["charge"]["datatype"] == "BYTES"
    for text, numbers in zip(outputs["charge"]["data"], charges.predict(SMILES)["charge"], strict=True):
        assert json.loads(text) == pytest.approx(numbers, abs=1e-5)
