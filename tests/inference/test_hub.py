"""Models go to the Hugging Face Hub and come back; here to one on this machine."""

import inspect
import json
import pickle
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mnagt import Ensemble, RunConfig, TrainConfig, TrainedModel, load_dataset, load_model, train
from mnagt.errors import InputError
from mnagt.inference.calibration import fit_calibration

hub_client = pytest.importorskip("huggingface_hub")


from huggingface_hub import constants  # noqa: E402
from inference.hub_server import Hub, serve_hub  # noqa: E402

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu")
FILES = {"config.json", "model.safetensors", "domain.safetensors", "README.md"}


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return train(CONFIG).trained


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[Hub]:
    with serve_hub() as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)  # as with HF_ENDPOINT at import
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def test_a_model_comes_back_from_the_hub_as_it_went(trained, hub):
    address = trained.push_to_hub("me/mutag", token="of nobody", commit_message="first")
    assert address.startswith(f"{hub.address}/me/mutag/commit/")
    assert hub.files["me/mutag"].keys() - {".gitattributes"} == FILES
    assert [commit["summary"] for commit in hub.commits] == ["first"]
    again, mutag = TrainedModel.from_pretrained("me/mutag"), load_dataset("MUTAG")
    assert torch.equal(again.outputs(mutag), trained.outputs(mutag))
    assert (again.task, again.settings) == (trained.task, trained.settings)
    assert again.origin == json.loads(json.dumps(trained.origin))
    hub.downloads.clear()
    TrainedModel.from_pretrained("me/mutag", local_files_only=True)
    assert not hub.downloads


def test_the_code_of_the_docs_runs(trained, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "of nobody")
    trained.save_pretrained("runs/mutag")
    text = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    (code,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["model"].name == trained.name


def test_saving_can_push_too(trained, hub, tmp_path):
    assert trained.save_pretrained(tmp_path / "a") is None
    address = trained.save_pretrained(tmp_path / "mutag", push_to_hub=True, token="of nobody")
    assert address.startswith(f"{hub.address}/me/mutag/commit/")
    assert (tmp_path / "mutag" / "README.md").read_bytes() == hub.files["me/mutag"]["README.md"]


def test_what_the_last_model_had_and_this_one_lacks_is_deleted(trained, hub):
    mutag = load_dataset("MUTAG")
    output = trained.outputs(mutag)
    calibrated = replace(trained, calibration=fit_calibration(trained.task, output, mutag.targets))
    calibrated.push_to_hub("me/mutag", token="of nobody")
    assert "calibration.json" in hub.files["me/mutag"]
    trained.push_to_hub("me/mutag", token="of nobody")
    assert hub.files["me/mutag"].keys() - {".gitattributes"} == FILES
    assert TrainedModel.from_pretrained("me/mutag").calibration is None


class Bomb:
    def __reduce__(self):
        return print, ("it ran",)


def test_nothing_of_a_repository_runs(trained, hub, tmp_path, capsys, monkeypatch):
    trained.push_to_hub("me/mutag", token="of nobody")
    files = hub.files["me/mutag"]
    files["pytorch_model.bin"], files["evil.py"] = pickle.dumps(Bomb()), b"print('it ran')"
    config = json.loads(files["config.json"])
    config["model"]["name"], config["plugins"] = "evil-model", ["evil"]
    assert TrainedModel.from_pretrained("me/mutag").name == "gin"
    assert not {"pytorch_model.bin", "evil.py"} & set(hub.downloads)
    folder = Path(hub_client.snapshot_download("me/mutag", local_dir=tmp_path / "all"))
    with pytest.raises(InputError, match=r"evil\.py: not of a model|pytorch_model\.bin: a pickle"):
        TrainedModel.from_pretrained(folder)
    files["config.json"] = json.dumps(config).encode()
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"no model 'evil-model'.*evil"):
        TrainedModel.from_pretrained("me/mutag")
    assert "evil" not in sys.modules
    assert "it ran" not in capsys.readouterr().out


def test_a_changed_file_is_refused(trained, hub):
    trained.push_to_hub("me/mutag", token="of nobody")
    hub.files["me/mutag"]["config.json"] += b"\n"
    with pytest.raises(InputError, match=r"config\.json: changed since the model was saved"):
        TrainedModel.from_pretrained("me/mutag")


def test_what_git_and_the_hub_leave_in_a_folder_is_no_fault(trained, hub, tmp_path):
    trained.push_to_hub("me/mutag", token="of nobody")
    folder = Path(hub_client.snapshot_download("me/mutag", local_dir=tmp_path / "all"))
    (folder / ".git").mkdir()
    assert {".cache", ".gitattributes"} <= {path.name for path in folder.iterdir()}
    assert load_model(folder).name == "gin"


def test_a_folder_comes_before_the_hub(trained, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained.save_pretrained("me/mutag")
    assert TrainedModel.from_pretrained("me/mutag").name == "gin"
    assert not hub.downloads


def test_mistakes_are_told(trained, hub, monkeypatch):
    with pytest.raises(InputError, match=r"'me/nothing' on the Hugging Face Hub: .*no folder of that name either"):
        TrainedModel.from_pretrained("me/nothing")
    with pytest.raises(InputError, match="a/b/c: no such folder"):
        TrainedModel.from_pretrained("a/b/c")
    with pytest.raises(InputError, match=r"'a//b' on the Hugging Face Hub: .*hf auth login"):
        trained.push_to_hub("a//b")
    with pytest.raises(InputError, match="save its members"):
        Ensemble.of([trained, trained]).push_to_hub("me/two")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install .*\[hub\]"):
        trained.push_to_hub("me/mutag")


def test_the_head_of_the_card_is_read_by_the_hub(trained, tmp_path):
    origin = {**trained.origin, "dataset": 'a "name": | <b>\n---'}
    replace(trained, origin=origin).save_pretrained(tmp_path / "model")
    card = hub_client.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.library_name == "mnagt"
    assert card.data.pipeline_tag == "graph-ml"
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found["accuracy"] == trained.origin["result"]["test"]["accuracy"]
    assert {result.dataset_name for result in card.data.eval_results} == {origin["dataset"]}
    assert card.text.lstrip().startswith("# gin on")
    without = replace(trained, origin={})
    without.save_pretrained(tmp_path / "bare")
    assert hub_client.ModelCard.load(tmp_path / "bare" / "README.md").data.to_dict()["tags"] == ["graph-ml", "gin"]


def test_the_documented_code_runs(trained, hub, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "of nobody")
    trained.save_pretrained("runs/mutag")
    exec(compile(code, "own-data.md", "exec"), {})
    assert hub.files["me/mutag"].keys() >= FILES


@pytest.mark.parametrize("name", ["save_pretrained", "from_pretrained", "push_to_hub"])
def test_the_form_is_that_of_the_hubs_mixin(name):
    ours, theirs = (
        inspect.signature(getattr(cls, name)).parameters for cls in (TrainedModel, hub_client.ModelHubMixin)
    )
    named = {key for key, parameter in ours.items() if parameter.kind != inspect.Parameter.VAR_KEYWORD}
    assert named <= theirs.keys()
    assert list(ours)[:1] == list(theirs)[:1]
