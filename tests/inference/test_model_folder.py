"""A model folder stands alone, and what was done to it is found out."""

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mnagt import RunConfig, TrainConfig, TrainedModel, load_dataset, load_model, train
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.inference.model_card import render_card
from mnagt.models.registry import MODELS, build_model
from mnagt.tasks import SingleLabel, Unlabelled

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu")


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return train(CONFIG).trained


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    trained.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_folder_alone_gives_the_same_answers(trained, folder):
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "domain.safetensors",
        "README.md",
    }
    again, mutag = TrainedModel.from_pretrained(folder), load_dataset("MUTAG")
    assert torch.equal(again.outputs(mutag), trained.outputs(mutag))
    assert (again.task, again.settings) == (trained.task, trained.settings)
    assert again.origin == json.loads(json.dumps(trained.origin))  # JSON has lists, no tuples
    assert dict(again.vocabularies) == {key: list(names) for key, names in trained.vocabularies.items()}


def test_the_card_tells_data_score_date_settings_and_use(trained, folder):
    card = (folder / "README.md").read_text()
    result = trained.origin["result"]
    for told in (
        "# gin on MUTAG", "single-label (-1, 1)", "150 graphs to train",
        f"test accuracy {result['test']['accuracy']:.4f}",
        trained.origin["date"], "`dim` 8", "`lr` 0.001", "TrainedModel.from_pretrained",
        f"{result['parameters']:,} param",
    ):  # fmt: skip
        assert told in card


def test_names_from_data_cannot_write_markdown(trained):
    named = replace(trained, task=SingleLabel(("`rm`", "[a](http://b)")), columns={"node_labels": ("`|<b>",)})
    card = render_card(named)
    assert "\\`rm\\`, \\[a\\](http://b)" in card
    assert "\\`\\|&lt;b>" in card


def test_the_fingerprints_are_those_of_the_files(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        note = json.loads(file.metadata()["note"])
    assert note["config"] == hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()


def test_a_folder_with_something_in_it_is_not_written_over(trained, folder):
    with pytest.raises(InputError, match="there is something in it already"):
        trained.save_pretrained(folder)


def test_no_path_of_the_trainers_machine_is_in_it(tmp_path):
    from mnagt.data.registry import EMBEDDED

    (tmp_path / "secret").mkdir()
    copied = shutil.copy(EMBEDDED / "MUTAG.zip", tmp_path / "secret" / "MUTAG.zip")
    train(
        RunConfig(str(copied), "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu")
    ).trained.save_pretrained(tmp_path / "model")
    assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "model").iterdir())


def change(folder: Path, *keys: str, to: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    (folder / "config.json").write_text(json.dumps(content, indent=2))


def rewrite(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Other weights under the old note."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    weights = load_file(path)
    edit(weights)
    save_file(weights, path, metadata)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "classes swapped": (lambda f: change(f, "task", "classes", to=["1", "-1"]), r"config\.json: changed since"),
    "another dropout": (lambda f: change(f, "model", "settings", "dropout", to=0.5), r"config\.json: changed since"),
    "another width": (lambda f: change(f, "model", "settings", "dim", to=16), "has shape .* restore the config"),
    "a giant": (lambda f: change(f, "model", "settings", "dim", to=1 << 20), "has shape .* restore the config"),
    "giant columns": (lambda f: change(f, "features", "nodes", "labels", to=[1 << 38]), "has shape"),
    "another model": (lambda f: change(f, "model", "name", to="gcn"), "safetensors: of another model|no setting"),
    "a weight changed": (lambda f: rewrite(f, lambda w: next(iter(w.values())).add_(1)), r"safetensors: changed since"),
    "a tensor gone": (lambda f: rewrite(f, lambda w: w.pop(next(iter(w)))), r"safetensors: changed since"),
    "a tensor more": (lambda f: rewrite(f, lambda w: w.update(x=torch.ones(1))), r"safetensors: changed since"),
    "a pickle": (lambda f: (f / "x.pkl").write_bytes(b""), r"x\.pkl: a pickle, which can run anything"),
    "a pickle by another name": (lambda f: (f / "notes.txt").write_bytes(pickle.dumps([1])), r"notes\.txt: a pickle"),
    "torch.save": (lambda f: torch.save([1], f / "notes"), "notes: a pickle"),
    "pickled weights": (lambda f: torch.save({}, f / "model.safetensors"), "safetensors: damaged or not a checkpoint"),
    "no origin": (lambda f: change(f, "origin", to=3), r"config\.json: changed since"),
    "a script": (lambda f: (f / "modeling.py").write_text("1"), r"modeling\.py: not of a model, whose folder holds"),
    "a folder": (lambda f: (f / "more").mkdir(), "more: not of a model"),
    "a folder for a file": (lambda f: ((f / "README.md").unlink(), (f / "README.md").mkdir()), r"README\.md: not a f"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_was_done_to_a_folder_is_refused_with_the_reason(folder, damage):
    damaging, told = DAMAGE[damage]
    damaging(folder)
    with pytest.raises(InputError, match=told):
        load_model(folder)


def test_a_runs_folder_may_hold_more_but_no_pickle(tmp_path):
    train(CONFIG, tmp_path / "run")
    (tmp_path / "run" / "notes.md").write_text("mine")
    load_model(tmp_path / "run")
    (tmp_path / "run" / "model.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.pt: a pickle"):
        load_model(tmp_path / "run")


def test_every_model_can_be_drawn_up_without_memory():
    features = Features(Columns((7, 3), 2), Columns((4,), 1))
    for name in MODELS:
        with torch.device("meta"):
            sketch = build_model(name, {}, MODELS[name].reads or features, 5).state_dict()
        assert all(tensor.is_meta for tensor in sketch.values())


def test_one_graph_is_answered_as_among_many():
    config = RunConfig("MUTAG", "mnagt", {"dim": 8, "depth": 2}, TrainConfig(epochs=1), device="cpu")
    trained, mutag = train(config).trained, load_dataset("MUTAG")
    assert trained.predictor(1) is not trained.model
    together = trained.outputs(mutag)
    for graph in (0, 87):
        torch.testing.assert_close(
            trained.outputs(mutag, torch.tensor([graph])), together[[graph]], rtol=1e-4, atol=1e-5
        )


def of_words(*words: str) -> PackedDataset:
    """A graph of two nodes for each pair of words."""
    labels = torch.tensor([[i % len(words)] for i in range(2 * len(words))])
    edges = torch.tensor([[2 * i, 2 * i + 1] for i in range(len(words))]).T
    batch = GraphBatch.from_edges(edges, [2] * len(words), node_labels=labels, targets=torch.zeros(len(words), 0))
    return PackedDataset.from_batch("words", Unlabelled(), batch, vocabularies={"node_labels/0": words})


def test_words_that_a_model_has_not_met_are_unknown_to_it_if_it_knows_of_such():
    knows = ("get", "__UNK__", "set", "get")
    model = build_model("gin", {"dim": 3}, Features(Columns((len(knows),))), 2)
    trained = TrainedModel(model, SingleLabel(("a", "b")), "gin", {}, vocabularies={"node_labels/0": knows})
    aligned = trained.align(of_words("set", "frobnicate", "get")).node_labels
    assert aligned is not None
    assert aligned.flatten().tolist() == [2, 1, 0, 2, 1, 0]
    without = replace(trained, vocabularies={"node_labels/0": ("get", "a", "set", "b")})
    with pytest.raises(InputError, match="holds frobnicate, which the model does not know"):
        without.align(of_words("set", "frobnicate", "get"))
