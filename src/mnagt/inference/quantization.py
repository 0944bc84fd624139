"""ONNX with weights of 8 bits, by the dynamic quantisation of ONNX Runtime: smaller, and not quite the model."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from mnagt.errors import InputError, one_line
from mnagt.files import write_atomically
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.random_graphs import random_graphs
from mnagt.inference.export import CHECKED_SIZES, DIGEST_SIZE, OnnxModel, add_digest, export_onnx, without_messages
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.inference.onnx_worker import QUANTISED

TIMED_SIZE, REPEATS = 23, 30
"""Nodes of the graph that predictions are timed for, and how often they are."""


@dataclass(frozen=True)
class QuantizationReport:
    """What quantisation of the weights gains and costs, beside the export in float32."""

    size: int
    float32_size: int
    """Bytes of the files."""
    largest: float
    mean: float
    """Absolute differences between the outputs and those of the model, on a few random graphs."""
    magnitude: float
    """Mean size of the model's outputs for the same graphs."""
    seconds: float
    float32_seconds: float
    """For a prediction for one graph; medians, one thread."""

    def __str__(self) -> str:
        return (
            f"{self.size / 1e6:.2f} MB (float32: {self.float32_size / 1e6:.2f}); on random graphs outputs are up to "
            f"{self.largest:.2g} off the model's, {self.mean:.2g} on average (their mean size: {self.magnitude:.2g}); "
            f"a graph takes {1000 * self.seconds:.2f} ms (float32: {1000 * self.float32_seconds:.2f})"
        )


def export_int8(model: TrainedModel | Path | str, path: Path | str) -> QuantizationReport:
    """Write a model as ONNX with weights of 8 bits, and report what that gains and costs.

    Numbers that layers compute are quantised too, all of a batch with one scale: outputs for a graph depend a little
    on the others.

    Args:
        model: The model, or the folder of a run.
        path: The file to write.
    """
    trained = model if isinstance(model, TrainedModel) else load_model(model)
    with tempfile.TemporaryDirectory() as folder:
        exact, quantised = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        export_onnx(trained, exact)
        _quantize(exact, quantised, trained)
        report = _compare(exact, quantised, trained)
        with write_atomically(Path(path)) as scratch:
            scratch.write_bytes(quantised.read_bytes())
    return report


def _quantize(exact: Path, quantised: Path, trained: TrainedModel) -> None:
    """Write what the quantiser makes of an export."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_model_from_string(exact.read_bytes()[:-DIGEST_SIZE])
    del model.graph.value_info[:]  # some of the exporter's shapes are not those that the quantiser infers
    try:
        with without_messages():  # uint8: products with int8 weights overflow on processors without VNNI
            quantize_dynamic(model, quantised, weight_type=QuantType.QUInt8)
    except Exception as error:  # of the quantiser's own kinds
        reason = one_line(error, 200)
        raise InputError(f"ONNX Runtime cannot quantise a {trained.name} ({reason}); leave out --quantize") from error
    content = quantised.read_bytes()
    if not any(node.op_type in QUANTISED for node in onnx.load_model_from_string(content).graph.node):
        raise InputError(f"a {trained.name} has no weights that can be quantised; leave out --quantize")
    quantised.write_bytes(add_digest(content))


def _compare(exact: Path, quantised: Path, trained: TrainedModel) -> QuantizationReport:
    float32, int8 = OnnxModel(exact, trained), OnnxModel(quantised, trained)
    batches = [random_graphs(trained.model.features, sizes) for sizes in CHECKED_SIZES]
    with torch.inference_mode():
        outputs = torch.cat([trained.predictor()(batch) for batch in batches])
        differences = (torch.cat([int8(batch) for batch in batches]) - outputs).abs()
    if not differences.isfinite().all():
        raise InputError(f"the outputs of a quantised {trained.name} are not finite; leave out --quantize")
    graph = random_graphs(trained.model.features, (TIMED_SIZE,))
    return QuantizationReport(
        size=quantised.stat().st_size,
        float32_size=exact.stat().st_size,
        largest=float(differences.max()),
        mean=float(differences.mean()),
        magnitude=float(outputs.abs().mean()),
        seconds=_time(int8, graph),
        float32_seconds=_time(float32, graph),
    )


def _time(model: OnnxModel, graph: GraphBatch) -> float:
    """Seconds of a prediction: the median of several."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        model(graph)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
