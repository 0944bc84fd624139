"""The Open Inference Protocol (V2), which KServe, Triton and others speak: requests and predictions as named tensors.

A request has one input, called ``smiles``, ``graphs`` (each a graph as JSON text) or ``code``, of datatype BYTES. Each
column of the predictions is an output. Models of molecules have one more, ``error``: why a SMILES could not be read, or
nothing. It is called ``error_`` where the model predicts a column ``error``. Tensors are JSON; there is no binary
extension. Rows of several molecules are a tensor with a column for each.
"""

import json
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from mnagt.errors import InputError
from mnagt.graphs.molecules import count_components
from mnagt.inference.domain import DISTANCE
from mnagt.serve.config import MAX_ENTRIES
from mnagt.serve.models import Models
from mnagt.serve.schemas import ERROR, Entries, Graph, PredictRequest, find_error, list_input_kinds
from mnagt.serve.service import Rows, Service
from mnagt.version import __version__

DATATYPES = {bool: "BOOL", int: "INT64", float: "FP64", str: "BYTES"}
"""Of columns; others, such as prediction sets, are JSON text."""


class Input(BaseModel):
    """A tensor of texts."""

    name: StrictStr
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=8)]
    datatype: StrictStr
    data: list[Any] = Field(description="texts; they may be nested as the shape says")
    parameters: dict[str, Any] | None = None


class Output(BaseModel):
    """A tensor with a number or a text for each graph."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class RequestedOutput(BaseModel):
    """A column of the predictions to return."""

    name: StrictStr
    parameters: dict[str, Any] | None = None


class Parameters(BaseModel):
    """``level``: also return sets or intervals of this coverage (calibrated models). Others are ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    level: Annotated[float, Field(gt=0, lt=1)] | None = None


class InferRequest(BaseModel):
    """Graphs to predict for."""

    model_config = ConfigDict(
        allow_inf_nan=False,
        json_schema_extra={
            "example": {"inputs": [{"name": "smiles", "shape": [1], "datatype": "BYTES", "data": ["CCO"]}]}
        },
    )

    id: StrictStr | None = None
    inputs: Annotated[list[Input], Field(min_length=1, max_length=1)]
    outputs: Entries[RequestedOutput] | None = None
    parameters: Parameters | None = None


class InferResponse(BaseModel):
    """The predictions."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[Output]


def read_tensors(request: InferRequest) -> PredictRequest:
    """The request as ``/predict`` takes it, or an ``InputError`` that names the field."""
    (tensor,) = request.inputs
    size = math.prod(tensor.shape)
    if size > MAX_ENTRIES:
        raise InputError(f"inputs[0].shape: {size:,} texts, at most {MAX_ENTRIES:,} are allowed")
    texts = _flatten(tensor.data, size + 1)
    if tensor.name not in PredictRequest.model_fields or tensor.name == "level":
        raise InputError(f"inputs[0].name: expected smiles, graphs or code, got {tensor.name[:60]!r}")
    if tensor.datatype != "BYTES" or not all(isinstance(text, str) for text in texts):
        raise InputError("inputs[0]: expected texts of datatype BYTES, as JSON")
    if len(texts) != size:
        count = f"over {size}" if len(texts) > size else len(texts)
        raise InputError(f"inputs[0]: {count} texts, and the shape says {size}")
    wanted = [each.name for each in request.outputs or ()]
    if len(set(wanted)) < len(wanted):  # each costs as much as a column of the response
        raise InputError("outputs: a name is there twice; name each column once")
    level = request.parameters and request.parameters.level
    if tensor.name == "smiles":
        columns = tensor.shape[1] if len(tensor.shape) == 2 else 1
        rows: list[str | list[str]] = [texts[at : at + columns] for at in range(0, size, columns or 1)]
        return PredictRequest(smiles=rows, level=level)
    if tensor.name == "code":
        if len(texts) != 1:
            raise InputError(f"inputs[0]: code is one text, got {len(texts)}")
        return PredictRequest(code=texts[0], level=level)
    return PredictRequest(graphs=[_read_graph(i, text) for i, text in enumerate(texts)], level=level)


def _flatten(data: list[Any], most: int) -> list[Any]:
    """The entries of nested lists, in order, without recursion; at most so many of them."""
    flat, rest = [], data[::-1]
    while rest and len(flat) < most:
        each = rest.pop()
        if isinstance(each, list):
            rest.extend(each[::-1])
        else:
            flat.append(each)
    return flat


def _read_graph(index: int, text: str) -> Graph:
    try:
        return Graph.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))[:80]
        raise InputError(f"inputs[0].data[{index}]{f', {field}' if field else ''}: {first['msg']}") from None


def write_tensors(rows: Rows, wanted: list[RequestedOutput] | None, *, with_errors: bool) -> list[Output]:
    """The columns of the predictions as tensors, those that are ``wanted``; with the reasons why some are missing."""
    errors = [find_error(row) for row in rows]
    answered = next(row for row, error in zip(rows, errors, strict=True) if not error)
    columns = {
        name: [None if error else row[name] for row, error in zip(rows, errors, strict=True)] for name in answered
    }
    if with_errors:
        columns[_name_errors(columns)] = errors
    names = list(columns) if wanted is None else [each.name for each in wanted]
    for name in names:
        if name not in columns:
            raise InputError(f"outputs: no {name[:60]!r}; there are: {', '.join(columns)}")
    return [_to_tensor(name, columns[name]) for name in names]


def _name_errors(columns: Collection[str]) -> str:
    """The output for the reasons: ``error``, or with _ after it where the model predicts such a column."""
    name = ERROR
    while name in columns:
        name += "_"
    return name


def _to_tensor(name: str, values: list[Any]) -> Output:
    """A missing number is null, which clients read as NaN; a missing text is empty."""
    kinds = {type(value) for value in values if value is not None}
    datatype = DATATYPES.get(kinds.pop()) if len(kinds) == 1 else None
    if None in values and datatype != "FP64":
        datatype, values = None, ["" if value is None else value for value in values]
    data = values if datatype else [value if isinstance(value, str) else json.dumps(value) for value in values]
    return Output(name=name, shape=[len(values)], datatype=datatype or "BYTES", data=data)


def describe_tensors(service: Service, versions: list[str]) -> dict[str, Any]:
    """The metadata of a model."""
    trained = service.trained
    if trained.code_vocabularies is not None:
        outputs = {"line": "INT64", "function": "BYTES", "names": "BYTES"}
    else:
        columns = trained.decode(torch.zeros(1, trained.task.num_outputs))
        outputs = {name: _to_tensor(name, values).datatype for name, values in columns.items()}
    outputs |= {} if service.domain is None else {DISTANCE: "FP64"}
    inputs, components = dict.fromkeys(list_input_kinds(trained), "BYTES"), count_components(trained.model.features)
    if "smiles" in inputs:
        outputs[_name_errors(outputs)] = "BYTES"
    return {
        "name": service.key[0],
        "versions": versions,
        "platform": "mnagt",
        "inputs": [
            {"name": name, "datatype": kind, "shape": [-1, components] if name == "smiles" and components > 1 else [-1]}
            for name, kind in inputs.items()
        ],
        "outputs": [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in outputs.items()],
    }


def add_v2_routes(
    app: FastAPI,
    models: Models,
    choices: Mapping[str, Callable[..., Coroutine[Any, Any, Service]]],
    responses: dict[int | str, dict[str, Any]],
) -> None:
    """Add the routes of the protocol. ``choices`` find the service, by the end of the path of a model."""

    @app.get("/v2", responses={401: responses[401]})
    async def describe_server() -> dict[str, Any]:
        """The name of the server, and the extensions of the protocol that it knows: none."""
        return {"name": "mnagt", "version": __version__, "extensions": []}

    for path, choose in choices.items():
        app.include_router(_make_routes(models, choose, responses), prefix=f"/v2/models/{path}")


def _make_routes(
    models: Models,
    choose: Callable[..., Coroutine[Any, Any, Service]],
    responses: dict[int | str, dict[str, Any]],
) -> APIRouter:
    router = APIRouter()
    without_body: dict[int | str, dict[str, Any]] = {status: responses[status] for status in (401, 404)}

    @router.get("", responses=without_body)
    async def describe(service: Annotated[Service, Depends(choose)]) -> dict[str, Any]:
        """The versions, inputs and outputs of a model."""
        return describe_tensors(service, models.list_versions(service))

    @router.get("/ready", responses=without_body)
    async def ready(service: Annotated[Service, Depends(choose)]) -> dict[str, Any]:
        """Whether the model is served."""
        return {"name": service.key[0], "ready": True}

    @router.post("/infer", responses=responses, response_model_exclude_none=True)
    async def infer(
        request: InferRequest, http: Request, service: Annotated[Service, Depends(choose)]
    ) -> InferResponse:
        """A prediction for each graph, as tensors."""

        async def predict() -> list[Output]:
            rows = await service.predict(read_tensors(request))
            return write_tensors(rows, request.outputs, with_errors="smiles" in list_input_kinds(service.trained))

        outputs = await service.wait(predict(), http)
        return InferResponse(model_name=service.key[0], model_version=service.key[1], id=request.id, outputs=outputs)

    return router
