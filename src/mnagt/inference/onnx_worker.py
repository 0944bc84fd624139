"""Runs an ONNX file that may be anyone's, in a process with limits of its own.

Neither torch nor the rest of the package is imported here. Run as a script, this file reads inputs from its standard
input, arrays of NumPy called ``RUN/NAME``. It ends with status 0 if the file holds what it may and all runs come to an
end; otherwise it writes the reason to its standard error.
"""

import io
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

_OPERATORS = """
    Abs Acos Add And ArgMax ArgMin Asin Atan BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape Cos CumSum Div Einsum Elu Equal
    Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm Greater GreaterOrEqual
    GroupNormalization HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LSTM LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LpNormalization MatMul Max Mean MeanVarianceNormalization Min Mish Mod Mul Neg
    NonZero Not OneHot Or PRelu Pad Pow RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round Scatter
    ScatterElements ScatterND Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign Split Sqrt
    Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor
"""
OPERATORS = frozenset(_OPERATORS.split())
"""Those of tensors and arithmetic. None repeats others (Loop, Scan, If), draws numbers, or reads texts or pictures."""
QUANTISED = ("DynamicQuantizeLinear", "MatMulInteger", "DequantizeLinear", "QuantizeLinear")
"""Those of weights of 8 bits: no service should run them in place of the model."""


def check_operators(model: Any) -> None:
    """Refuse a model that holds anything but tensors and ``OPERATORS``, by a ``ValueError``."""
    if model.functions:
        raise ValueError("it defines functions")
    if model.graph.sparse_initializer:
        raise ValueError("it holds sparse tensors, which may unpack to any size")
    tensors = list(model.graph.initializer)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        raise ValueError("its weights are quantised, so its outputs are not the model's: leave out --quantize")
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            name = f"{node.domain}.{node.op_type}".lstrip(".")
            raise ValueError(f"the operator {name[:60]!r} is not among those that models of graphs need")
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise ValueError(f"its {node.op_type} holds another graph")
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ValueError("it holds sparse tensors, which may unpack to any size")
            tensors += [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
    if any(tensor.data_location or tensor.external_data for tensor in tensors):
        raise ValueError("it reads other files")


def limit_process(seconds: int, memory: int) -> None:
    """End this process after so many seconds of processor time, and let it have no more bytes; where systems can.

    Lower limits that it has already stay.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        lowest = min(each for each in (limit, *resource.getrlimit(kind)) if each != resource.RLIM_INFINITY)
        with suppress(ValueError, OSError):  # macOS has no limit of memory
            resource.setrlimit(kind, (lowest, lowest))


def read_inputs(content: bytes) -> list[dict[str, Any]]:
    """The inputs of each run."""
    import numpy as np

    runs: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for key, array in arrays.items():
            run, name = key.split("/")
            runs[run][name] = array
    return list(runs.values())


def main(path: str, seconds: str, memory: str) -> None:
    """Check the file and run it on all inputs."""
    limit_process(int(seconds), int(memory))
    import onnx
    import onnxruntime

    content = Path(path).read_bytes()
    check_operators(onnx.load_model_from_string(content))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    for inputs in read_inputs(sys.stdin.buffer.read()):
        session.run(None, {name: value for name, value in inputs.items() if name in names})


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # of the runtime's own kinds
        sys.exit(" ".join(str(error).split())[:300] or type(error).__name__)
