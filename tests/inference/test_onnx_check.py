"""An ONNX file from a stranger cannot hang a service, take its memory or read other files."""

import io
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mnagt.errors import InputError
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.random_graphs import random_graphs
from mnagt.inference import export, onnx_worker
from mnagt.inference.export import OnnxModel
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.onnx_check import MEMORY, SECONDS, check_onnx
from mnagt.models.registry import build_model
from mnagt.serve.app import create_app
from mnagt.serve.config import ServeConfig
from mnagt.tasks import SingleLabel

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper


@pytest.fixture(scope="module")
def gin() -> TrainedModel:
    torch.manual_seed(0)
    features = Features(Columns((3,)))
    return TrainedModel(build_model("gin", {}, features, 2).eval(), SingleLabel(("a", "b")), "gin", {})


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> Path:
    """It has the inputs of an export, and answers 0."""
    shapes = {"sizes": ["graphs"], "graph_of_node": ["nodes"], "edge_index": [2, "edges"], "node_labels": ["nodes", 1]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["graphs", 2])
    nodes = [
        constant("zeros", np.zeros((1, 2), np.float32)),
        constant("columns", np.array([1])),
        helper.make_node("Shape", ["sizes"], ["graphs"]),
        helper.make_node("Concat", ["graphs", "columns"], ["shape"], axis=0),
        helper.make_node("Expand", ["zeros", "shape"], ["outputs"]),
    ]
    graph = helper.make_graph(nodes, "harmless", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path_factory.mktemp("export") / "harmless.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def constant(name: str, value: object) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))


def loop() -> list[Any]:
    """2^62 turns."""
    inputs = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
    ]
    end = helper.make_tensor_value_info("end", TensorProto.BOOL, [])
    body = helper.make_graph([helper.make_node("Identity", ["go_on"], ["end"])], "body", inputs, [end])
    turns = [constant("turns", np.int64(2**62)), constant("go", True)]
    return [*turns, helper.make_node("Loop", ["turns", "go"], [], body=body)]


def allocation() -> list[Any]:
    """32 GiB, by a size that is known before the model is run."""
    return [
        constant("one", np.array([1], np.float32)),
        constant("many", np.array([2**33])),
        helper.make_node("Expand", ["one", "many"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"]),
    ]


def late_allocation() -> list[Any]:
    """32 GiB, by a size that is computed from the graphs."""
    return [
        constant("one", np.array([1], np.float32)),
        constant("half", np.array([2**32])),
        helper.make_node("Shape", ["sizes"], ["count"]),
        helper.make_node("Add", ["count", "count"], ["double"]),
        helper.make_node("Mul", ["half", "double"], ["many"]),
        helper.make_node("Expand", ["one", "many"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"]),
    ]


def long_products() -> list[Any]:
    """Minutes of operators that are allowed, in little memory."""
    nodes = [
        constant("zero", np.array([[0]], np.float32)),
        constant("size", np.array([2048, 2048])),
        helper.make_node("Shape", ["sizes"], ["count"]),
        helper.make_node("Mul", ["size", "count"], ["sides"]),
        helper.make_node("Expand", ["zero", "sides"], ["m0"]),
    ]
    return nodes + [helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(1000)]


def other_file() -> list[Any]:
    tensor = onnx.TensorProto(name="secret", data_type=TensorProto.FLOAT, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="../secret.bin")
    return [helper.make_node("Constant", [], ["secret"], value=tensor)]


def sparse() -> list[Any]:
    values, index = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]), helper.make_tensor("i", 7, [1], [0])
    tensor = helper.make_sparse_tensor(values, index, [2**33])
    return [helper.make_node("Constant", [], ["large"], sparse_value=tensor)]


def text() -> list[Any]:
    return [constant("text", np.array(["a"], object)), helper.make_node("StringNormalizer", ["text"], ["lower"])]


def add_to(harmless: Path, path: Path, make: Callable[[], list[Any]]) -> Path:
    """The file with more nodes, the last of which is an output too."""
    model, nodes = onnx.load(harmless), make()
    model.graph.node.extend(nodes)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes[-1].output)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (loop, "the operator 'Loop' is not among those"),
        (allocation, r"not run \("),
        (late_allocation, r"not run \(.*(alloc|it takes more than)"),
        (other_file, "it reads other files"),
        (sparse, "it holds sparse tensors"),
        (text, "the operator 'StringNormalizer' is not among those"),
    ],
)
def test_what_a_file_may_not_do_is_refused(gin, harmless, tmp_path, make, reason):
    path = add_to(harmless, tmp_path / "evil.onnx", make)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(InputError, match=rf"evil\.onnx: not run \(.*{reason.removeprefix('not run ')}"):
        create_app(gin, ServeConfig(onnx=str(path)))
    assert time.process_time() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_functions_that_multiply_are_refused(gin, harmless, tmp_path):
    """Each calls the one before it twice: 2^40 nodes, written down in forty."""
    model, opsets = onnx.load(harmless), [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    for i in range(40):
        call = ("own", f"f{i - 1}") if i else ("", "Neg")
        nodes = [helper.make_node(call[1], [a], [b], domain=call[0]) for a, b in (("x", "y"), ("y", "z"))]
        model.functions.append(helper.make_function("own", f"f{i}", ["x"], ["z"], nodes, opsets))
    model.graph.node.extend([constant("x", np.float32(1)), helper.make_node("f39", ["x"], ["y"], domain="own")])
    path = tmp_path / "evil.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="it defines functions"):
        check_onnx(path, gin)


def test_what_takes_too_long_is_ended(gin, harmless, tmp_path):
    path = add_to(harmless, tmp_path / "long.onnx", long_products)
    with pytest.raises(InputError, match=r"long\.onnx: not run \(it takes more than 2 s or"):
        check_onnx(path, gin, seconds=2)


@pytest.mark.parametrize("limits", ["-v 1900000", "-t 50", "-S -t 50"])
def test_lower_limits_of_the_shell_stay(harmless, limits):
    """``ulimit -v`` for the service, as SECURITY.md advises."""
    inputs = io.BytesIO()
    np.savez(inputs)
    worker = [sys.executable, "-I", onnx_worker.__file__, str(harmless), str(SECONDS), str(MEMORY)]
    command = ["bash", "-c", f'ulimit {limits}; exec "$@"', "bash", *worker]
    done = subprocess.run(command, input=inputs.getvalue(), capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_system_without_a_limit_of_memory_has_the_others(monkeypatch):
    """As macOS."""
    limits = {}

    def set_limit(kind: int, limit: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        limits[kind] = limit

    monkeypatch.setattr(resource, "setrlimit", set_limit)
    onnx_worker.limit_process(7, 2**40)
    assert limits == {resource.RLIMIT_CPU: (7, 7), resource.RLIMIT_CORE: (0, 0)}


def test_what_is_no_onnx_is_refused(gin, tmp_path):
    for content in (b"", b"no"):
        (tmp_path / "no.onnx").write_bytes(content)
        with pytest.raises(InputError, match=r"no\.onnx: not run \("):
            check_onnx(tmp_path / "no.onnx", gin)


def test_memory_that_only_some_graphs_ask_for_is_not_given(gin, harmless, tmp_path, monkeypatch):
    """The check has graphs of up to 23 nodes in all; for 400 this file asks for 5 GiB."""

    def squares() -> list[Any]:
        return [
            helper.make_node("Shape", ["graph_of_node"], ["nodes"]),
            helper.make_node("Mul", ["nodes", "nodes"], ["many"]),
            constant("times", np.array([8000])),
            helper.make_node("Mul", ["many", "times"], ["more"]),
            constant("one", np.array([1], np.float32)),
            helper.make_node("Expand", ["one", "more"], ["large"]),
            helper.make_node("ReduceSum", ["large"], ["sum"]),
        ]

    path = add_to(harmless, tmp_path / "squares.onnx", squares)
    check_onnx(path, gin)
    model = OnnxModel(path, gin)
    small = model(random_graphs(gin.model.features, (5, 3)))
    assert torch.equal(small, torch.zeros(2, 2))
    with pytest.raises(
        InputError, match=f"it takes more than {export.MAX_MEMORY / 2**30:.0f} GiB; give it fewer graphs"
    ):
        model(random_graphs(gin.model.features, (20,) * 20))
    assert torch.equal(model(random_graphs(gin.model.features, (5, 3))), small)
