"""A SMILES that cannot be read gets the reason in its place, and the others of its request are answered."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serve.test_app import read_metric
from serve.test_open_inference import PREDICT, columns, tensors

from mnagt.data.readers.smiles import read_smiles

LONG, LARGE = "C" * 2001, "C" * 1001
MIXED = ["C1CC", "CCO", LONG, "c1ccccc1", "", LARGE, "CC(=O)[O-].[Na+]", "C(C)(C)(C)(C)C"]
GOOD = (1, 3, 6)
REASONS = {2: "2,001 characters, at most 2,000 are allowed", 5: "1,001 nodes in one graph, at most 1,000 are allowed"}


def test_the_others_are_answered_as_alone(at, molecules):
    httpx.post(f"{at}/predict", json={"smiles": ["C", "C1"]})
    unread_before = read_metric(at, 'mnagt_unread_total{model="mnagt"}')
    rows = httpx.post(f"{at}/predict", json={"smiles": MIXED}).json()["predictions"]
    assert len(rows) == len(MIXED)
    expected = molecules.predict(read_smiles([MIXED[entry] for entry in GOOD]).graphs)
    assert [rows[entry]["p(active)"] for entry in GOOD] == pytest.approx(expected["p(active)"], abs=1e-5)
    unread = {entry: row for entry, row in enumerate(rows) if entry not in GOOD}
    assert all(list(row) == ["error"] and row["error"] for row in unread.values())
    assert {entry: unread[entry]["error"] for entry in REASONS} == REASONS
    alone = httpx.post(f"{at}/predict", json={"smiles": ["C1CC"]})
    assert (alone.status_code, alone.json()["detail"]) == (422, f"smiles[0]: {rows[0]['error']}")
    assert read_metric(at, 'mnagt_unread_total{model="mnagt"}') == unread_before + 5


def test_requests_of_one_batch_keep_their_places(start, molecules):
    at = start(molecules, window_ms=50)
    bodies = [[MIXED[(i + k) % len(MIXED)] for k in range(4)] for i in range(8)]
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda smiles: httpx.post(f"{at}/predict", json={"smiles": smiles}).json(), bodies))
    expected = {smiles: each for smiles, each in zip(MIXED, _alone(at), strict=True) if each is not None}
    for smiles, answer in zip(bodies, answers, strict=True):
        for text, row in zip(smiles, answer["predictions"], strict=True):
            assert row.get("p(active)") == (pytest.approx(expected[text], abs=1e-5) if text in expected else None)


def _alone(at: str) -> list[float | None]:
    answers = [httpx.post(f"{at}/predict", json={"smiles": [smiles]}) for smiles in MIXED]
    return [each.json()["predictions"][0]["p(active)"] if each.status_code == 200 else None for each in answers]


def test_what_concerns_the_whole_request_refuses_it(at):
    many = httpx.post(f"{at}/predict", json={"smiles": ["C1CC"] * 257})
    assert (many.status_code, many.json()["detail"]) == (422, "smiles: 1 to 256 entries are allowed, got 257")
    assert httpx.post(f"{at}/predict", json={"smiles": ["C", None]}).status_code == 422
    assert httpx.post(f"{at}/predict", json={"smiles": ["C1CC", "C", "C" * 32_000]}).status_code == 422


def test_an_explanation_is_of_the_entry_that_was_asked_for(at):
    for which in GOOD:
        answer = httpx.post(f"{at}/explain", json={"smiles": MIXED, "which": which}, timeout=60).json()
        assert len(answer["attribution"]) == read_smiles([MIXED[which]]).graphs.sizes.tolist()[0]
    refused = httpx.post(f"{at}/explain", json={"smiles": MIXED, "which": 2})
    assert (refused.status_code, refused.json()["detail"]) == (422, f"smiles[2]: {REASONS[2]}")
    beyond = httpx.post(f"{at}/explain", json={"smiles": MIXED, "which": 8})
    assert beyond.json()["detail"] == "which: expected 0 to 7, got 8"


def test_tensors_have_no_number_and_no_text_where_there_is_no_prediction(at):
    rows = httpx.post(f"{at}/predict", json={"smiles": MIXED}).json()["predictions"]
    answer = httpx.post(f"{at}{PREDICT}", json=tensors(MIXED))
    found = columns(answer)
    assert found["error"] == [row.get("error", "") for row in rows]
    assert found["p(active)"] == [
        pytest.approx(row["p(active)"], abs=1e-5) if "p(active)" in row else None for row in rows
    ]
    assert found["prediction"] == [row.get("prediction", "") for row in rows]
    kinds = {each["name"]: each["datatype"] for each in answer.json()["outputs"]}
    assert kinds == {"prediction": "BYTES", "p(inactive)": "FP64", "p(active)": "FP64", "error": "BYTES"}
    some = httpx.post(f"{at}{PREDICT}", json=tensors(["C"], outputs=[{"name": "error"}]))
    assert columns(some) == {"error": [""]}
    assert httpx.post(f"{at}{PREDICT}", json=tensors(["C1CC"])).json()["error"].startswith("smiles[0]: ")


def test_a_model_may_predict_a_column_called_error(start, error_model):
    at = start(error_model)
    good, bad = httpx.post(f"{at}/predict", json={"smiles": ["CCO", "C1CC"]}).json()["predictions"]
    assert (good["error"] in ("small", "large"), list(bad)) == (True, ["error"])
    found = columns(httpx.post(f"{at}{PREDICT}", json=tensors(["CCO", "C1CC"])))
    assert (found["error"], found["error_"]) == ([good["error"], ""], ["", bad["error"]])
    assert found["logP"] == [pytest.approx(good["logP"], abs=1e-5), None]
    assert [each["name"] for each in httpx.get(f"{at}/v2/models/mnagt").json()["outputs"]] == list(found)


def test_the_schema_says_what_is_in_place_of_a_prediction(at):
    schema = httpx.get(f"{at}/openapi.json").json()
    response = schema["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert response == {"$ref": "#/components/schemas/Predictions"}
    predictions = schema["components"]["schemas"]["Predictions"]["properties"]["predictions"]
    assert "SMILES that cannot be read only error: why" in predictions["description"]
