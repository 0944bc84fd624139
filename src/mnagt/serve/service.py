"""A model behind the HTTP service: predictions in batches, explanations one at a time."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate, groupby
from typing import Any, TypeVar

import torch
from fastapi.exceptions import HTTPException
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.errors import InputError
from mnagt.inference.export import OnnxModel, check_export
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.outputs import compute_outputs
from mnagt.serve.batching import Batcher
from mnagt.serve.config import ServeConfig
from mnagt.serve.layout import compute_drawing
from mnagt.serve.metrics import Metrics
from mnagt.serve.schemas import (
    ExplainRequest,
    PredictRequest,
    RequestGraphs,
    concatenate,
    list_input_kinds,
    read_request,
)
from mnagt.tasks import task_to_dict
from mnagt.version import __version__

MAX_EXPLANATIONS = 8
"""Explanations that may wait; each takes as long as many predictions."""
STEPS = 32
"""Intervals that the path of integrated gradients begins with."""
LIMITS = ("max_body", "max_graphs", "max_nodes", "max_explained", "max_edges", "max_text", "seconds")

Rows = list[dict[str, Any]]
Result = TypeVar("Result")


class Service:
    """The model and its threads: one for batches of predictions, one for explanations."""

    def __init__(self, trained: TrainedModel, config: ServeConfig) -> None:
        self.trained, self.config, self.metrics = trained, config, Metrics()
        trained.model.eval()
        self.model: nn.Module = trained.predictor()
        if config.onnx:
            self.model = OnnxModel(config.onnx, trained, threads=config.threads)
            try:
                check_export(self.model, trained)
            except InputError as error:
                raise InputError(f"{config.onnx}: {error}; export the model again") from None
        self.predictions: Batcher[PredictRequest, Rows] = Batcher(
            self.predict, window=config.window_ms / 1000, max_batch=config.max_batch, max_waiting=config.max_waiting
        )
        self.explanations: Batcher[ExplainRequest, dict[str, Any]] = Batcher(
            lambda requests: [self.explain(*requests)], window=0, max_batch=1, max_waiting=MAX_EXPLANATIONS
        )

    def close(self) -> None:
        """Drop what waits. A batch or explanation that has begun is finished in its thread."""
        self.predictions.close()
        self.explanations.close()

    def predict(self, requests: Sequence[PredictRequest]) -> list[Rows | Exception]:
        """The predictions for each request, or the reason why it is refused."""
        self.metrics.batch.add(len(requests))
        results: list[Rows | Exception] = [[] for _ in requests]
        readable: dict[int, RequestGraphs] = {}
        for i, request in enumerate(requests):
            try:
                readable[i] = read_request(request, self.trained, self.config)
            except InputError as error:
                results[i] = error
        outputs = self._compute_outputs(list(readable.values()))
        for (i, graphs), output in zip(readable.items(), outputs, strict=True):
            try:
                results[i] = self._format(graphs, output, requests[i].level)
                self.metrics.graphs += len(output)
            except InputError as error:
                results[i] = error
        return results

    def _compute_outputs(self, requests: Sequence[RequestGraphs]) -> Iterator[Float[Tensor, "graphs outputs"]]:
        """The outputs for each request, with at most about ``max_nodes`` nodes in a forward pass."""
        ends = accumulate(int(request.graphs.node_ptr[-1]) for request in requests)
        numbered = zip(ends, requests, strict=True)
        for _, group in groupby(numbered, lambda pair: (pair[0] - 1) // self.config.max_nodes):
            parts = [request.graphs for _, request in group]
            graphs = concatenate(parts)
            model = self.model if self.config.onnx else self.trained.predictor(len(graphs))
            output = compute_outputs(model, graphs, torch.arange(len(graphs)), batch_size=len(graphs))
            yield from output.split([len(part) for part in parts])

    def _format(self, request: RequestGraphs, output: Float[Tensor, "graphs outputs"], level: float | None) -> Rows:
        """A JSON object for each graph."""
        _check_finite(output)
        if request.functions:
            suggestions = self.trained.suggest(output)
            return [
                {
                    "line": function.line,
                    "function": function.name,
                    "names": [{"name": "_".join(words), "p": p} for words, p in names],
                }
                for function, names in zip(request.functions, suggestions, strict=True)
            ]
        columns = self.trained.decode(output, level)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def explain(self, request: ExplainRequest) -> dict[str, Any]:
        """The prediction for one graph with its attributions, its kernel weights and a drawing."""
        from mnagt.explain.explanation import explain

        read, which = read_request(request, self.trained, self.config), request.which
        if which >= len(read.graphs):
            raise InputError(f"which: expected 0 to {len(read.graphs) - 1}, got {which}")
        if (nodes := int(read.graphs.sizes[which])) > self.config.max_explained:
            raise InputError(f"{nodes:,} nodes; graphs of up to {self.config.max_explained:,} nodes are explained")
        index, functions = torch.tensor([which]), read.functions[which : which + 1]
        output = compute_outputs(self.model, read.graphs, index)
        (prediction,) = self._format(RequestGraphs(read.graphs, functions), output, request.level)
        (explanation,) = explain(self.trained, read.graphs, index, target=request.target, steps=STEPS)
        _check_finite(explanation.attribution.nodes)
        smiles = None if request.smiles is None else explanation.smiles
        names = self.trained.vocabularies.get("node_labels/0", ())
        return {
            "prediction": prediction,
            "explained": {"output": explanation.output.name, "unit": explanation.output.unit},
            "drawing": compute_drawing(explanation.graph, smiles, functions[0] if functions else None, names),
            "attribution": _round(explanation.attribution.nodes),
            "gap": round(explanation.attribution.gap, 6),
            "kernel_weights": [_round(layer) for layer in explanation.kernel_weights],
        }

    def describe(self) -> dict[str, Any]:
        """What the model reads and predicts, and the limits of requests."""
        trained, config = self.trained, self.config
        task = task_to_dict(trained.task)
        task.pop("words", None)  # thousands
        return {
            "model": trained.name,
            "trained_on": str(trained.origin.get("dataset", "")),
            "task": task,
            "predicts": trained.task.describe(),
            "reads": list(list_input_kinds(trained)),
            "features": asdict(trained.model.features),
            "is_calibrated": trained.calibration is not None,
            "limits": {name: getattr(config, name) for name in LIMITS} | {"nodes_in_one_graph": config.max_graph_nodes},
            "version": __version__,
        }

    async def limit_time(self, result: Awaitable[Result]) -> Result:
        """Wait for ``result`` up to the time limit; errors become HTTP errors."""
        try:
            return await asyncio.wait_for(result, self.config.seconds)
        except asyncio.QueueFull:
            raise HTTPException(429, "too many requests are waiting; try again later") from None
        except TimeoutError:
            raise HTTPException(503, f"no answer within {self.config.seconds:g} s; send fewer graphs at once") from None
        except InputError as error:
            raise HTTPException(422, str(error)) from None


def _check_finite(values: Float[Tensor, "..."]) -> None:
    if not values.isfinite().all():
        raise InputError("the model gives no finite answer: values are far from those it was trained on")


def _round(values: Float[Tensor, "..."]) -> list:
    return torch.round(values.double(), decimals=6).tolist()
