"""Several models and versions in one service, replaced while it answers."""

import copy
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from mnagt.errors import InputError
from mnagt.inference.model_folder import TrainedModel
from mnagt.serve.app import create_app, start_models
from mnagt.serve.config import ServeConfig
from mnagt.serve.models import find_models


def with_bias(trained: TrainedModel, bias: float, folder: Path) -> Path:
    """The model with this log-odds of the second class for every graph."""
    model = copy.deepcopy(trained.model)
    *_, last = model.head.children()
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.zeros_(last.weight)
    last.bias.data = torch.tensor([0.0, bias])
    replace(trained, model=model).save(folder)
    return folder


@pytest.fixture
def root(molecules, tmp_path) -> Path:
    """A model with two versions, and one without."""
    for version, bias in (("9", -3.0), ("10", 3.0)):
        with_bias(molecules, bias, tmp_path / "models" / "active" / version)
    with_bias(molecules, 0.0, tmp_path / "models" / "other")
    return tmp_path / "models"


def wait_until(is_so: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask(at: str, path: str) -> httpx.Response:
    return httpx.post(f"{at}{path}/predict", json={"smiles": ["C"]}, timeout=30)


def probability(at: str, path: str) -> float:
    return ask(at, path).json()["predictions"][0]["p(active)"]


def test_models_are_served_by_name_and_version(start, root):
    at = start(root)
    assert httpx.get(f"{at}/models").json() == {"active": {"9": 0.0, "10": 1.0}, "other": {"1": 1.0}}
    assert probability(at, "/models/active") == pytest.approx(0.953, abs=1e-3)
    assert probability(at, "/models/active/versions/9") == pytest.approx(0.047, abs=1e-3)
    assert probability(at, "/models/other") == pytest.approx(0.5)
    assert ask(at, "/models/active").headers["x-model"] == "active/10"
    about = httpx.get(f"{at}/models/active/versions/9/model").json()
    assert about["served_as"] == {"name": "active", "version": "9"}
    explained = httpx.post(f"{at}/models/other/explain", json={"smiles": ["CO"]}, timeout=60)
    assert len(explained.json()["attribution"]) == 2
    refused = [ask(at, path) for path in ("", "/models/none", "/models/active/versions/11")]
    assert [(each.status_code, each.json()["detail"].split("(")[0]) for each in refused] == [
        (404, "several models are served "),
        (404, "no such model; there are: active, other"),
        (404, "no such version; there are: 9, 10"),
    ]
    text = httpx.get(f"{at}/metrics").text
    assert 'mnagt_graphs_total{model="active",version="9"} 1\n' in text
    assert 'mnagt_request_seconds_count{model="active",version="10"} 2\n' in text
    assert 'mnagt_requests_total{path="/predict",status="404"} 3\n' in text


def test_shares_divide_the_requests_among_versions(start, root):
    (root / "active" / "shares.json").write_text('{"9": 0.25, "10": 0.75}')
    at = start(root)
    answered = Counter(ask(at, "/models/active").headers["x-model"] for _ in range(200))
    assert set(answered) == {"active/9", "active/10"}
    assert 25 <= answered["active/9"] <= 80  # 50 expected, with a deviation of 6


@pytest.mark.parametrize("content", ["[1]", '{"9": 2}', '{"9": 0}', '{"9": "x"}', "{", '{"7": 1}'])
def test_shares_that_make_no_sense_leave_the_newest_version(root, content, caplog):
    (root / "active" / "shares.json").write_text(content)
    models, _ = start_models(root, ServeConfig())
    assert dict(models.table["active"].shares) == {"10": 1.0}
    assert "shares.json: expected shares of versions" in caplog.text
    for service in models.services:
        service.close()


def test_a_damaged_file_of_shares_leaves_them_as_they_are(root, caplog):
    """It must not send all requests to a version that is on trial."""
    shares = root / "active" / "shares.json"
    shares.write_text('{"9": 0.9, "10": 0.1}')
    models, _ = start_models(root, ServeConfig())
    shares.write_text('{"9": 0.9, "1')
    models.refresh()
    models.refresh()
    assert dict(models.table["active"].shares) == {"9": 0.9, "10": 0.1}
    assert caplog.text.count("shares.json: expected shares") == 1  # not at every reading
    assert "they stay as they are" in caplog.text
    shares.unlink()
    models.refresh()
    assert dict(models.table["active"].shares) == {"10": 1.0}
    for service in models.services:
        service.close()


def test_a_model_that_fails_in_an_unforeseen_way_does_not_end_the_reloading(start, root, monkeypatch, caplog):
    at = start(root, reload_seconds=0.1)

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr("mnagt.serve.app.load_models", fail)
        shutil.copytree(root / "other", root / "large")
        wait_until(lambda: "large is not served: DefaultCPUAllocator" in caplog.text)
    shutil.copytree(root / "other", root / "small")
    wait_until(lambda: ask(at, "/models/small").status_code == 200)
    assert ask(at, "/models/active").status_code == 200


def test_a_version_is_replaced_by_a_rename_and_no_request_fails(start, root, molecules, tmp_path):
    at, statuses, is_done = start(root, reload_seconds=0.1), Counter(), threading.Event()

    def send() -> None:
        while not is_done.is_set():
            statuses[ask(at, "/models/active").status_code] += 1

    callers = [threading.Thread(target=send) for _ in range(3)]
    for caller in callers:
        caller.start()
    try:
        new = with_bias(molecules, 5.0, root / ".new")
        shutil.move(root / "active" / "10", tmp_path / "old")
        new.rename(root / "active" / "10")
        wait_until(lambda: probability(at, "/models/active") > 0.99)
        with_bias(molecules, -5.0, root / ".new").rename(root / "active" / "11")
        wait_until(lambda: ask(at, "/models/active").headers["x-model"] == "active/11")
        (root / "active" / "shares.json").write_text(json.dumps({"9": 1}))
        wait_until(lambda: ask(at, "/models/active").headers["x-model"] == "active/9")
    finally:
        is_done.set()
        for caller in callers:
            caller.join()
    assert set(statuses) == {200}
    shutil.rmtree(root / "other")
    wait_until(lambda: ask(at, "/models/other").status_code == 404)
    with_bias(molecules, 0.0, root / ".new").rename(root / "other")
    wait_until(lambda: ask(at, "/models/other").status_code == 200)


def test_a_damaged_model_does_not_take_the_place_of_a_good_one(start, root, caplog):
    at = start(root, reload_seconds=0.1)
    weights = root / "active" / "10" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    wait_until(lambda: "10 is not served anew" in caplog.text)
    assert probability(at, "/models/active") == pytest.approx(0.953, abs=1e-3)
    shutil.copytree(root / "active" / "10", root / "broken")
    wait_until(lambda: "broken is not served:" in caplog.text)
    assert ask(at, "/models/broken").status_code == 404
    assert caplog.text.count("broken is not served") == 1


def test_a_folder_in_which_no_model_can_be_loaded_is_refused(root):
    for weights in root.rglob("model.safetensors"):
        weights.write_bytes(b"no")
    with pytest.raises(InputError, match="none of its models can be loaded"):
        create_app(root)
    with pytest.raises(InputError, match="--onnx is the export of one model"):
        create_app(root, ServeConfig(onnx="x.onnx"))


def test_folders_that_are_being_written_and_odd_names_are_left_alone(root):
    for name in (".new", "a b", "<b>", "x" * 101):
        shutil.copytree(root / "other", root / name)
    assert {name: list(versions) for name, versions in find_models(root).items()} == {
        "active": ["9", "10"],
        "other": ["1"],
    }
