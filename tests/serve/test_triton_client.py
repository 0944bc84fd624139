"""A public client of the Open Inference Protocol, Triton's, is answered."""

from collections.abc import Iterator

import numpy as np
import pytest

from mnagt.data.readers.smiles import read_smiles
from mnagt.version import __version__

tritonclient = pytest.importorskip("tritonclient.http")
from tritonclient.utils import InferenceServerException  # noqa: E402

SMILES = ["CCO", "C1CC", "c1ccccc1"]


@pytest.fixture
def client(at) -> Iterator:
    with tritonclient.InferenceServerClient(at.removeprefix("http://")) as client:
        yield client


def make_input(smiles: list[str], *, binary_data: bool = False):
    tensor = tritonclient.InferInput("smiles", [len(smiles)], "BYTES")
    return tensor.set_data_from_numpy(np.array(smiles, dtype=object), binary_data=binary_data)


def test_health_and_metadata(client):
    assert (client.is_server_live(), client.is_server_ready(), client.is_model_ready("mnagt")) == (True,) * 3
    assert not client.is_model_ready("other")
    assert client.get_server_metadata() == {"name": "mnagt", "version": __version__, "extensions": []}
    about = client.get_model_metadata("mnagt", "1")
    assert about["inputs"][0] == {"name": "smiles", "datatype": "BYTES", "shape": [-1]}


def test_predictions_are_the_models_own(client, molecules):
    answer = client.infer("mnagt", [make_input(SMILES)], request_id="42")
    expected = molecules.predict(read_smiles([SMILES[0], SMILES[2]]).graphs)
    assert answer.get_response()["id"] == "42"
    np.testing.assert_allclose(answer.as_numpy("p(active)")[[0, 2]], expected["p(active)"], atol=1e-5)
    assert np.isnan(answer.as_numpy("p(active)")[1])
    assert answer.as_numpy("prediction").tolist()[::2] == expected["prediction"]
    assert answer.as_numpy("error").tolist() == ["", "not a SMILES", ""]
    some = client.infer("mnagt", [make_input(SMILES)], outputs=[tritonclient.InferRequestedOutput("error")])
    assert [each["name"] for each in some.get_response()["outputs"]] == ["error"]


@pytest.mark.parametrize(
    ("model", "smiles", "binary_data", "status", "message"),
    [
        ("mnagt", ["C1CC"], False, "422", "smiles[0]: not a SMILES"),
        ("other", ["C"], False, "404", "no such model; there are: mnagt"),
        ("mnagt", ["C"], True, "400", "binary tensors are not read; send JSON (binary_data=False)"),
    ],
)
def test_errors_reach_the_caller(client, model, smiles, binary_data, status, message):
    with pytest.raises(InferenceServerException) as raised:
        client.infer(model, [make_input(smiles, binary_data=binary_data)])
    assert (raised.value.status(), message in raised.value.message()) == (status, True), raised.value
