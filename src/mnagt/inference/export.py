"""A trained model as one file for other programs: ONNX, or PyTorch's exported program.

What is traced is the model's own code, on a batch that does its sums and layouts by operations that ONNX has. Every
export is compared with the model before it is written.
"""

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.errors import InputError, explain_missing, one_line
from mnagt.files import write_atomically
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.encodings import get_encoding
from mnagt.graphs.random_graphs import random_graphs
from mnagt.graphs.traced_batch import TracedBatch
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.migrations import EXPORT_INPUTS
from mnagt.nn.molecule_descriptors import Descriptors, MorganBits, TableColumns
from mnagt.tasks import task_to_dict
from mnagt.version import __version__

if TYPE_CHECKING:
    from torch.export import ExportedProgram

MAX_MEMORY = 2**32
"""Bytes that the computations of all exported models in a process may take at once."""
TOLERANCE = 1e-4
"""How far an export's outputs may lie from the model's own: this much, and this share of them."""

_TRACED = (5, 1, 4, 2, 7, 3)
CHECKED_SIZES = ((1,), (1, 1), (1, 11, 3, 1, 6), (23,))
"""Sizes of the graphs that are traced, and of those that an export is checked on."""
_DIGEST = b"\x72\x4a\x0a\x06digest\x12\x40"
"""In the encoding of ONNX (protobuf): field 14 of 74 bytes, in it "digest" and a text of 64 bytes, which follows."""
DIGEST_SIZE = len(_DIGEST) + 64


def export_onnx(model: TrainedModel | Path | str, path: Path | str) -> None:
    """Write a model as ONNX, for any number of graphs, nodes and edges. Metadata hold the task and the columns.

    Args:
        model: The model, or the folder of a run.
        path: The file to write.

    >>> from mnagt import export_onnx
    >>> export_onnx("runs/mutag", "mutag.onnx")  # doctest: +SKIP
    """
    trained, path = _load(model), Path(path)
    with explain_missing("ONNX", "export"):
        import onnxscript  # noqa: F401
    program, inputs = _trace(trained)
    with without_messages(), write_atomically(path) as scratch:
        try:
            written = torch.onnx.export(program, input_names=list(inputs), output_names=["outputs"], verbose=False)
        except torch.onnx.OnnxExporterError as error:
            raise InputError(
                f"a {trained.name} cannot be written as ONNX, which lacks an operation that it needs; export it for "
                "PyTorch: --format torch"
            ) from error
        assert written is not None
        _rename_sizes(written.model, inputs)
        written.model.metadata_props.update(_metadata(trained))
        written.save(scratch)
        scratch.write_bytes(add_digest(scratch.read_bytes()))
        check_export(OnnxModel(scratch, trained), trained)


def export_torch(model: TrainedModel | Path | str, path: Path | str) -> None:
    """Write a model as a program for ``torch.export.load``.

    Args:
        model: The model, or the folder of a run.
        path: The file to write.

    >>> from mnagt import export_torch
    >>> export_torch("runs/mutag", "mutag.pt2")  # doctest: +SKIP
    """
    trained, path = _load(model), Path(path)
    program, _ = _trace(trained)
    buffer = io.BytesIO()
    with without_messages():
        torch.export.save(program, buffer, extra_files=_metadata(trained))
        buffer.seek(0)
        loaded = torch.export.load(buffer).module()
        check_export(lambda batch: loaded(export_inputs(batch, trained)), trained)
    with write_atomically(path) as scratch:
        scratch.write_bytes(buffer.getvalue())


def export_compiled(model: TrainedModel | Path | str, path: Path | str) -> None:
    """Write a model as machine code for this kind of processor, for ``torch._inductor.aoti_load_package``.

    It needs a C++ compiler, and takes minutes. The package reads its inputs in the order of its metadata ``inputs``,
    whatever their names in the dictionary.

    Args:
        model: The model, or the folder of a run.
        path: The file to write; its name ends in .pt2.
    """
    trained, path = _load(model), Path(path)
    if path.suffix != ".pt2":
        raise InputError(f"{path}: compiled packages end in .pt2; choose such a name")
    program, inputs = _trace(trained)
    with without_messages(), write_atomically(path) as scratch:
        options = {"aot_inductor.metadata": {**_metadata(trained), "inputs": json.dumps(list(inputs))}}
        try:
            torch._inductor.aoti_compile_and_package(program, package_path=str(scratch), inductor_configs=options)
        except Exception as error:  # of the compilers' own kinds
            raise InputError(f"a {trained.name} cannot be compiled here ({one_line(error)}); it takes g++") from error
        loaded = torch._inductor.aoti_load_package(str(scratch))
        check_export(lambda batch: loaded(export_inputs(batch, trained)), trained)


FORMATS: dict[str, Callable[[TrainedModel | Path | str, Path | str], None]] = {
    "onnx": export_onnx,
    "torch": export_torch,
    "compiled": export_compiled,
}


class ExportedModel(nn.Module):
    """The model as a function of plain tensors.

    ``sizes`` int64 [graphs]: nodes of each graph. ``graph_of_node`` int64 [nodes]: 0, 0, 0, 1, 1, ... ``edge_index``
    int64 [2, edges]: source and destination of each edge, nodes counted through all graphs, in any order. Then, where
    the model reads them, ``node_labels`` and ``edge_labels`` (int64), ``node_values`` and ``edge_values`` (float32),
    one row each; and encodings that take more than a few operations, such as ``random-walk``.
    """

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.model, self.encodings = trained.predictor(), _encodings(trained)

    def forward(self, graphs: dict[str, Tensor]) -> Float[Tensor, "graphs outputs"]:
        graph_of_node, sizes = graphs["graph_of_node"], graphs["sizes"]
        batch = TracedBatch.trace(
            graphs["edge_index"],
            graph_of_node,
            sizes,
            node_labels=graphs.get("node_labels"),
            node_values=graphs.get("node_values"),
            edge_labels=graphs.get("edge_labels"),
            edge_values=graphs.get("edge_values"),
            encodings={name: graphs[name] for name in self.encodings},
        )
        return self.model(batch)


class OnnxModel(nn.Module):
    """An exported model in place of the model itself: on a CPU, ONNX Runtime is faster for single graphs."""

    def __init__(self, path: Path | str, trained: TrainedModel, *, threads: int = 1) -> None:
        super().__init__()
        with explain_missing("ONNX", "export"):
            import onnxruntime
        _limit_memory()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4  # errors are raised
        options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            _check_digest(Path(path))
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of the runtime's own kinds
            raise InputError(f"{path}: not an ONNX model ({one_line(error, 120)})") from None
        self.trained = trained
        names = [each.name for each in self.session.get_inputs()]
        self.names = {EXPORT_INPUTS.get(name, name): name for name in names}

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs outputs"]:
        columns = export_inputs(graph, self.trained)
        inputs = {self.names.get(name, name): column.numpy() for name, column in columns.items()}
        try:
            return torch.from_numpy(self.session.run(None, inputs)[0])
        except Exception as error:  # of the runtime's own kinds
            reason = " ".join(str(error).split())
            if "Available memory" in reason:
                reason = f"it takes more than {MAX_MEMORY / 2**30:.0f} GiB; give it fewer graphs at once"
            raise InputError(f"the exported model cannot be run on these graphs: {reason[-200:]}") from None


@cache
def _limit_memory() -> None:
    """Limit what ONNX Runtime takes, in the memory that its sessions share."""
    import onnxruntime

    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(MAX_MEMORY, -1, -1, -1))


def export_inputs(batch: GraphBatch, trained: TrainedModel) -> dict[str, Tensor]:
    """The inputs of ``ExportedModel`` and of the files for these graphs."""
    inputs = {"sizes": batch.sizes, "graph_of_node": batch.graph_of_node, "edge_index": batch.edge_index}
    features = trained.model.features
    for kind, columns in (("node", features.nodes), ("edge", features.edges)):
        if columns.labels:
            inputs[f"{kind}_labels"] = getattr(batch, f"{kind}_labels").long()
        if columns.values:
            inputs[f"{kind}_values"] = getattr(batch, f"{kind}_values").float()
    for name, size in _encodings(trained).items():
        inputs[name] = get_encoding(batch, name, size)
    return inputs


def _encodings(trained: TrainedModel) -> dict[str, int]:
    """Name and size of the encodings that are inputs of the file. WL colours of labels it computes itself."""
    encodings = trained.model.encodings | ({} if trained.forest is None else trained.forest.encodings)
    computed = ("wl-colours", "subtree-colours", "fragment-colours") if trained.model.features.nodes.labels else ()
    return {name: size for name, size in encodings.items() if name not in computed}


def _trace(trained: TrainedModel) -> "tuple[ExportedProgram, dict[str, Tensor]]":
    """The model as a program over inputs of any size, and the inputs it was traced on."""
    trained.to("cpu").model.eval()
    if trained.forest is not None:
        trained.forest.limit_steps()
    if any(isinstance(part, MorganBits | Descriptors | TableColumns) for part in trained.model.modules()):
        raise InputError(
            f"this {trained.name} cannot be exported: it reads fingerprints or descriptors, which no exported file can "
            "compute; use `mnagt serve` or load_model"
        )
    model = ExportedModel(trained)
    inputs = export_inputs(random_graphs(trained.model.features, _TRACED), trained)
    dims = {name: torch.export.Dim(name) for name in ("graphs", "nodes", "edges")}
    shapes = {name: {axis: dims[what]} for name in inputs for axis, what in [_dynamic_axis(name)]}
    try:
        with without_messages(), torch.no_grad():
            return torch.export.export(model, (inputs,), dynamic_shapes=(shapes,)), inputs
    except Exception as error:  # whatever the model does that cannot be traced
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"a {trained.name} with these settings cannot be exported: its layers or readout work on each graph by "
            f"itself ({reason}); docs/export.md lists models that can"
        ) from error


def _dynamic_axis(name: str) -> tuple[int, str]:
    """The axis of an input that may have any size, and what it counts."""
    if name == "edge_index":
        return 1, "edges"
    return 0, "graphs" if name == "sizes" else "edges" if name.startswith("edge") else "nodes"


def _rename_sizes(model: Any, inputs: dict[str, Tensor]) -> None:
    """Let the ONNX model call its sizes graphs, nodes and edges."""
    import onnx_ir

    axes = zip(model.graph.inputs, map(_dynamic_axis, inputs), strict=True)
    names = {str(value.shape[axis]): name for value, (axis, name) in axes}
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = onnx_ir.Shape([names.get(str(size), size) for size in value.shape])


def check_export(exported: Callable[[GraphBatch], Tensor], trained: TrainedModel) -> None:
    """Refuse an export whose outputs are not those of the model."""
    for sizes in CHECKED_SIZES:
        batch = random_graphs(trained.model.features, sizes)
        with torch.inference_mode():
            ours, theirs = trained.predictor()(batch), exported(batch)
        if not torch.allclose(theirs, ours, rtol=TOLERANCE, atol=TOLERANCE):
            worst = float((theirs - ours).abs().max())
            raise InputError(f"on graphs of {sizes} nodes the export is {worst:.1e} off its model, {trained.name}")


def add_digest(content: bytes) -> bytes:
    """An ONNX file with one more entry of its ``metadata_props`` at its end: the SHA-256 of all before it."""
    return content + _DIGEST + hashlib.sha256(content).hexdigest().encode()


def _check_digest(path: Path) -> None:
    """Refuse a file that is not as it was exported. Those of 0.2 and before have no digest."""
    content = path.read_bytes()
    body, entry, digest = content[:-DIGEST_SIZE], content[-DIGEST_SIZE:-64], content[-64:]
    if entry == _DIGEST and digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("changed since it was exported: its digest is another")


def _load(model: TrainedModel | Path | str) -> TrainedModel:
    trained = model if isinstance(model, TrainedModel) else load_model(model)
    if (level := trained.task.level) != "graph":
        raise InputError(
            f"this {trained.name} cannot be exported: it predicts for {level}s, whose number differs from graph to "
            "graph; use `mnagt serve` or load_model"
        )
    return trained


def _metadata(trained: TrainedModel) -> dict[str, str]:
    """Task, columns, category names and temperature, as JSON."""
    metadata = {
        "version": __version__,
        "model": trained.name,
        "task": task_to_dict(trained.task),
        "features": asdict(trained.model.features),
        "vocabularies": {name: list(words) for name, words in trained.vocabularies.items()},
        "temperature": 1.0 if trained.calibration is None else trained.calibration.temperature,
    }
    return {"mnagt": json.dumps(metadata)}


@contextmanager
def without_messages() -> Iterator[None]:
    """Without the messages of PyTorch's exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
