"""The service says which graphs are unlike those of the training, and how far all of them have drifted."""

from dataclasses import replace

import httpx
import pytest
import torch

from mnagt.data.readers.smiles import read_smiles
from mnagt.data.splits import Split
from mnagt.inference.domain import fit_domain
from mnagt.inference.export import export_onnx
from mnagt.inference.model_folder import TrainedModel
from mnagt.models.registry import build_model

CHAINS = ["C" * n + end for n in range(1, 13) for end in ("O", "N", "C(=O)O", "Cl")]
STRANGE = "O=S(=O)(c1ccc(Br)cc1)N1CCC(CC1)C(=O)Nc1nc2ccc(I)cc2s1"


@pytest.fixture(scope="session")
def chains(molecules) -> TrainedModel:
    """Knows chains with a group at the end."""
    dataset = read_smiles(CHAINS).graphs
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    return replace(molecules, domain=fit_domain(molecules.model, dataset, Split(order[:30], order[30:46], order[46:])))


def read_samples(at: str) -> dict[str, float]:
    lines = httpx.get(f"{at}/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_distances_are_the_models_own_and_graphs_outside_are_counted(start, chains):
    at, smiles = start(chains), ["CCCO", "CCCCCN", STRANGE]
    rows = httpx.post(f"{at}/predict", json={"smiles": smiles}).json()["predictions"]
    expected = chains.predict(read_smiles(smiles).graphs)
    assert [row["distance"] for row in rows] == pytest.approx(expected["distance"], rel=1e-3)
    assert [row["p(active)"] for row in rows] == pytest.approx(expected["p(active)"], abs=1e-5)
    assert rows[0]["distance"] < 1 < rows[2]["distance"]
    explained = httpx.post(f"{at}/explain", json={"smiles": [STRANGE]}, timeout=60).json()
    assert explained["prediction"]["distance"] == pytest.approx(expected["distance"][2], rel=1e-3)
    assert httpx.get(f"{at}/model").json()["gives_distances"]
    samples = read_samples(at)
    assert samples['mnagt_graphs_outside_total{model="mnagt"}'] == sum(
        distance > 1 for distance in expected["distance"]
    )
    of_nodes = [
        value
        for name, value in samples.items()
        if name.startswith('mnagt_graphs_by_bin_total{model="mnagt",feature="nodes"')
    ]
    assert sum(of_nodes) == 3


def test_drift_is_a_metric(start, chains):
    at, feature = start(chains), 'mnagt_drift_psi{model="mnagt",feature="node_labels/0"}'
    for smiles in CHAINS:
        httpx.post(f"{at}/predict", json={"smiles": [smiles]})
    before = read_samples(at)
    assert before['mnagt_drift_psi{model="mnagt",feature="nodes"}'] < 0.3
    for _ in range(20):
        httpx.post(f"{at}/predict", json={"smiles": [STRANGE] * 10})
    after = read_samples(at)
    assert after['mnagt_drift_psi{model="mnagt",feature="nodes"}'] > 1
    assert after[feature] > before[feature]


def test_with_onnx_there_are_no_distances(start, chains, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    model = build_model("gin", {}, chains.model.features, 2).eval()
    gin = replace(chains, model=model, name="gin", settings={})
    export_onnx(gin, tmp_path / "gin.onnx")
    at = start(gin, onnx=str(tmp_path / "gin.onnx"))
    assert "distance" not in httpx.post(f"{at}/predict", json={"smiles": ["CCO"]}).json()["predictions"][0]
    assert not httpx.get(f"{at}/model").json()["gives_distances"]
