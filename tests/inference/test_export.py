"""Exports answer as the model does, whatever the number of graphs, nodes and edges."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from fitted import fit_at_random
from safetensors.torch import load_file, save_file
from strategies import CATEGORIES, EDGE_LABELS, EDGE_VALUES, NODE_LABELS, NODE_VALUES, random_batch
from torch import Tensor
from woods import grow_at_random

from mnagt import RunConfig, TrainConfig, train
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.molecules import MOLECULES
from mnagt.inference.export import (
    FORMATS,
    ExportedModel,
    export_compiled,
    export_inputs,
    export_onnx,
    export_torch,
)
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.onnx_check import check_onnx
from mnagt.inference.random_forest import RandomForest
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.tasks import SingleLabel

onnxruntime = pytest.importorskip("onnxruntime")
FULL = Features(Columns((CATEGORIES,) * NODE_LABELS, NODE_VALUES), Columns((CATEGORIES,) * EDGE_LABELS, EDGE_VALUES))
SMALL = {"depth": 1, "dim": 24}
NARROW = {**SMALL, "max_hop": 1, "wl_iterations": 2}
BUSH = {"forest_trees": 3, "forest_max_leaves": 3}
REFUSED = {
    "graphormer",
    "graphit",
    "grpe",
    "gophormer",
    "san",
    "graphtrans",
    "sagpool",
    "morgan-forest",
    "descriptor-boosting",
    "mnagt-ensemble",
}
"""They look at each graph's pairs of nodes, add nodes or drop some: sizes that hang on what the tensors hold. The last
two need RDKit."""
NO_DEPTH = ("sortpool", "grover", "counts", "wl-linear")
"""Models that have no layers, or whose layers are not to be two."""


@pytest.fixture
def _symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a model is traced sizes are symbols, which the checks of shapes do not take for numbers."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def trained(name: str, features: Features, settings: dict[str, Any]) -> TrainedModel:
    """A model that has seen a few graphs, so that its running statistics are not those it began with."""
    if MODELS[name].is_fitted_by_sklearn:
        model, settings = fit_at_random(name, settings, features, 3)
        return TrainedModel(model.eval(), SingleLabel(("a", "b", "c")), name, settings)
    torch.manual_seed(0)
    model = build_model(name, settings, features, 3)
    seen, task = graphs(features, [5, 3, 7, 2, 9], seed=1), SingleLabel(("a", "b", "c"))
    model.train()(seen)
    settings = full_settings(name, settings)
    forest = RandomForest.from_settings(settings, 3)
    if forest is not None:
        grow_at_random(forest, seen)
    return TrainedModel(model.eval(), task, name, settings, forest=forest)


def graphs(features: Features, sizes: list[int], seed: int, density: float = 0.3) -> GraphBatch:
    has = {"node_labels": bool(features.nodes.labels), "node_values": features.nodes.values > 0}
    has |= {"edge_labels": bool(features.edges.labels), "edge_values": features.edges.values > 0}
    return random_batch(sizes, density, seed, is_directed=True, **has)


def two_hundred(features: Features) -> list[GraphBatch]:
    """200 random graphs: a batch of 100, a batch without any edges, 50 alone, some of them single nodes."""
    drawn = np.random.default_rng(0).integers(1, 30, 150).tolist()
    alone = [graphs(features, [size], seed, 0.2) for seed, size in enumerate([1, 1, 2, *drawn[:47]])]
    return [graphs(features, drawn[50:], 7), graphs(features, [1, 4, 1, 17, *[1] * 46], 8, 0.0), *alone]


def assert_answers(answer: Any, model: TrainedModel, batches: list[GraphBatch]) -> None:
    for batch in batches:
        with torch.inference_mode():
            expected = model.predictor()(batch)
            torch.testing.assert_close(answer(export_inputs(batch, model)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "features"),
    [("gin", Features()), ("gat", Features()), *((name, FULL) for name in sorted({*MODELS} - REFUSED))],
)
def test_the_traceable_form_is_the_model(name, features):
    model = trained(name, features, {"depth": 2} if name not in NO_DEPTH else {})
    assert_answers(ExportedModel(model), model, [graphs(features, [5, 1, 4, 2, 11, 3], 3), graphs(features, [1], 4)])


def test_edges_come_in_any_order():
    model, batch = trained("mnagt", FULL, SMALL), graphs(FULL, [5, 1, 4, 9], 3)
    inputs = export_inputs(batch, model)
    order = torch.randperm(batch.num_edges, generator=torch.Generator().manual_seed(0))
    shuffled = inputs | {name: inputs[name][order] for name in ("edge_labels", "edge_values")}
    shuffled["edge_index"] = inputs["edge_index"][:, order]
    torch.testing.assert_close(ExportedModel(model)(shuffled), model.model(batch))


ONNX = [
    ("mnagt", FULL, {**NARROW, "attention": "cosine", "forest_trees": 3, "forest_max_leaves": 9}),
    ("mnagt", Features(), {**NARROW, "random_walk": 3, "readout": "attention", "mixer": "concat"} | BUSH),
    ("mnagt", Features(), {**SMALL, "structural_counts": True, "input_readout": True, "attention": "none"}),
    ("mnagt-paper", FULL, {**SMALL, "max_hop": 1}),
    ("transformer", FULL, SMALL),
    ("gin", FULL, SMALL),
    ("gcn", Features(), SMALL),
    ("wl-linear", FULL, {}),
    ("wl-linear", Features(), {"normalisation": "presence"}),
    ("counts", FULL, {"dim": 24}),
]


@pytest.mark.usefixtures("_symbols")
@pytest.mark.parametrize(("name", "features", "settings"), ONNX, ids=lambda v: v if isinstance(v, str) else "")
def test_onnx_answers_as_the_model_on_200_graphs(name, features, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("mnagt.inference.random_forest.MAX_DEPTH", 8)  # trees of nine leaves are no deeper
    saved, path = trained(name, features, settings), tmp_path / "model.onnx"
    export_onnx(saved, path)
    session = onnxruntime.InferenceSession(path)
    told = json.loads(session.get_modelmeta().custom_metadata_map["mnagt"])
    assert told["task"]["classes"] == ["a", "b", "c"]
    check_onnx(path, saved)

    def answer(inputs: dict[str, Tensor]) -> Tensor:
        return torch.from_numpy(session.run(None, {key: column.numpy() for key, column in inputs.items()})[0])

    batches = two_hundred(features)
    assert sum(batch.num_graphs for batch in batches) == 200
    assert_answers(answer, saved, batches)


@pytest.mark.slow
@pytest.mark.usefixtures("_symbols")
@pytest.mark.parametrize("name", sorted({*MODELS} - REFUSED - {"sortpool"}))
def test_every_listed_model_is_written_and_answers(name, tmp_path):
    """Single nodes and graphs without edges included."""
    saved, path = trained(name, FULL, {"depth": 1} if name not in NO_DEPTH else {}), tmp_path / "model.onnx"
    export_onnx(saved, path)
    session = onnxruntime.InferenceSession(path)
    check_onnx(path, saved)

    def answer(inputs: dict[str, Tensor]) -> Tensor:
        return torch.from_numpy(session.run(None, {key: column.numpy() for key, column in inputs.items()})[0])

    batches = [graphs(FULL, sizes, 3, density) for sizes, density in (([5, 1, 11, 3], 0.3), ([1], 0.3), ([1, 17], 0.0))]
    assert_answers(answer, saved, batches)


@pytest.mark.slow
@pytest.mark.usefixtures("_symbols")
def test_a_model_that_onnx_cannot_hold_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"a sortpool cannot be written as ONNX.*--format torch"):
        export_onnx(trained("sortpool", FULL, {}), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    export_torch(trained("sortpool", FULL, {}), tmp_path / "model.pt2")  # compared with the model before it is written


@pytest.mark.usefixtures("_symbols")
def test_the_exported_program_answers_as_the_model_on_200_graphs(tmp_path):
    saved, path = trained("mnagt", FULL, NARROW), tmp_path / "model.pt2"
    export_torch(saved, path)
    assert_answers(torch.export.load(path).module(), saved, two_hundred(FULL))


CLEAN = """
import json, sys, torch
from safetensors.torch import load_file, save_file
inputs, path, kind, out = load_file(sys.argv[1]), *sys.argv[2:]
if kind == "compiled":
    model = torch._inductor.aoti_load_package(path)
    inputs = {name: inputs[name] for name in json.loads(model.get_metadata()["inputs"])}
else:
    model = torch.export.load(path).module()
with torch.inference_mode():
    save_file({"outputs": model(inputs)}, out)
assert "mnagt" not in sys.modules
"""
"""A program that knows nothing of this package."""


@pytest.mark.slow
@pytest.mark.usefixtures("_symbols")
@pytest.mark.parametrize(("name", "settings"), [("gin", SMALL), ("mnagt", NARROW)])
@pytest.mark.parametrize("kind", ["torch", "compiled"])
def test_a_clean_process_reads_what_was_written(name, settings, kind, tmp_path):
    if kind == "compiled" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    saved, path = trained(name, FULL, settings), tmp_path / "model.pt2"
    FORMATS[kind](saved, path)
    for number, batch in enumerate(
        (graphs(FULL, [5, 1, 11, 3], 3), graphs(FULL, [1], 4), graphs(FULL, [1, 17], 5, 0.0))
    ):
        given, out = tmp_path / f"{number}.safetensors", tmp_path / f"{number}.out"
        save_file(export_inputs(batch, saved), given)
        command = [sys.executable, "-I", "-c", CLEAN, str(given), str(path), kind, str(out)]
        subprocess.run(command, cwd=tmp_path, check=True)
        with torch.inference_mode():
            torch.testing.assert_close(load_file(out)["outputs"], saved.predictor()(batch), rtol=1e-4, atol=1e-4)


def test_a_compiled_package_has_its_own_ending(tmp_path):
    with pytest.raises(InputError, match=r"model\.so: compiled packages end in \.pt2"):
        export_compiled(trained("gin", Features(), SMALL), tmp_path / "model.so")


@pytest.mark.usefixtures("_symbols")
@pytest.mark.parametrize(("name", "settings"), [("graphormer", {}), ("mnagt", {"readout": "virtual-node"})])
def test_what_cannot_be_traced_is_refused(name, settings, tmp_path):
    with pytest.raises(InputError, match=f"a {name} with these settings cannot be exported"):
        export_torch(trained(name, Features(), settings), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_model_that_needs_rdkit_is_refused(tmp_path):
    with pytest.raises(InputError, match="this morgan-forest cannot be exported: it reads fingerprints"):
        export_onnx(trained("morgan-forest", MOLECULES, {}), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_symbols")
def test_the_command_writes_what_it_is_asked_for(tmp_path, capsys):
    folder, out = tmp_path / "run", tmp_path / "gin.onnx"
    folder.mkdir()
    trained("gin", Features(), SMALL).save(folder)
    assert main(["export", str(folder), "--format", "onnx", "--out", str(out)]) == 0
    assert Path(capsys.readouterr().out.split()[0]) == out
    assert [value.name for value in onnxruntime.InferenceSession(out).get_inputs()] == [
        "sizes",
        "graph_of_node",
        "edge_index",
    ]
    assert main(["export", str(folder), "--format", "tflite"]) == 2


@pytest.mark.usefixtures("_symbols")
def test_the_example_in_the_docs_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    example, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    run = train(RunConfig("MUTAG", "gin", SMALL, TrainConfig(epochs=1)))
    export_onnx(run.trained, tmp_path / "mine.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["outputs"].shape == (2, 2)
    assert names["about"]["model"] == "gin"
