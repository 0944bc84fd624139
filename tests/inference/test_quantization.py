"""Weights of 8 bits: a smaller file, and a report of what that costs."""

from pathlib import Path

import pytest
import torch
from inference.test_export import FULL, NARROW, SMALL, graphs, trained
from torch import Tensor

from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.graphs.random_graphs import random_graphs
from mnagt.inference.export import CHECKED_SIZES, OnnxModel, export_onnx
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.onnx_check import check_onnx
from mnagt.inference.quantization import export_int8

pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def _symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a model is traced sizes are symbols, which the checks of shapes do not take for numbers."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def differences(path: Path, model: TrainedModel) -> Tensor:
    exported = OnnxModel(path, model)
    batches = [random_graphs(model.model.features, sizes) for sizes in CHECKED_SIZES]
    with torch.inference_mode():
        return torch.cat([(exported(batch) - model.predictor()(batch)).abs() for batch in batches])


@pytest.mark.parametrize(("name", "features", "settings"), [("mnagt", FULL, NARROW), ("gin", Features(), SMALL)])
def test_the_report_says_what_the_file_does(name, features, settings, tmp_path):
    model, path = trained(name, features, settings), tmp_path / "int8.onnx"
    report = export_int8(model, path)
    export_onnx(model, tmp_path / "float32.onnx")
    assert (report.size, report.float32_size) == (path.stat().st_size, (tmp_path / "float32.onnx").stat().st_size)
    assert report.size < report.float32_size
    found = differences(path, model)
    assert report.largest == pytest.approx(float(found.max()), rel=1e-3)
    assert report.mean == pytest.approx(float(found.mean()), rel=1e-3)
    assert 1e-4 < report.largest < 10 * report.magnitude  # in another order of size it would be another model
    assert min(report.seconds, report.float32_seconds) > 0
    answer = OnnxModel(path, model)(graphs(features, [1, 9, 1], 5, 0.0))  # single nodes, no edges
    assert answer.isfinite().all()


def test_a_quantised_file_is_not_served_and_damage_to_it_is_noticed(tmp_path):
    model, path = trained("gin", Features(), SMALL), tmp_path / "int8.onnx"
    export_int8(model, path)
    with pytest.raises(InputError, match="its weights are quantised, so its outputs are not the model's"):
        check_onnx(path, model)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="changed since it was exported"):
        OnnxModel(path, model)


def test_a_model_without_matrices_is_refused(tmp_path):
    with pytest.raises(InputError, match="a wl-linear has no weights that can be quantised"):
        export_int8(trained("wl-linear", FULL, {}), tmp_path / "int8.onnx")
    assert not list(tmp_path.iterdir())


def test_the_command_prints_size_error_and_speed(tmp_path, capsys):
    folder, out = tmp_path / "run", tmp_path / "gin.onnx"
    folder.mkdir()
    trained("gin", Features(), SMALL).save(folder)
    assert main(["export", str(folder), "--quantize", "int8", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in (f"{out}: ", " MB (float32: ", " off the model's", " ms (float32: "))
    assert main(["export", str(folder), "--quantize", "int8", "--format", "torch"]) == 2
    assert "only ONNX files can have weights of 8 bits" in capsys.readouterr().err
