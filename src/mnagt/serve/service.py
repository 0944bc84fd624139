"""A model behind the HTTP service: predictions in batches, explanations one at a time."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import torch
from fastapi import Request
from fastapi.exceptions import HTTPException
from jaxtyping import Float, Int
from opentelemetry import trace
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.graphs.molecules import ATOMS, count_components, find_molecule_format
from mnagt.inference.domain import Domain
from mnagt.inference.drift import count_bins, measure_drift
from mnagt.inference.export import OnnxModel, check_export
from mnagt.inference.model_folder import TrainedModel, distance_column
from mnagt.inference.onnx_check import check_onnx
from mnagt.inference.outputs import compute_outputs
from mnagt.serve.batching import AbandonedError, Batcher, Worker
from mnagt.serve.config import ServeConfig
from mnagt.serve.layout import compute_drawing
from mnagt.serve.metrics import SIZES, Metrics
from mnagt.serve.schemas import (
    ERROR,
    Check,
    ExplainRequest,
    PredictRequest,
    RequestGraphs,
    concatenate,
    find_largest_graph,
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

_NOT_FINITE = "the model gives no finite answer: values are far from those it was trained on"

Rows = list[dict[str, Any]]
Result = TypeVar("Result")


class ReadRequest(NamedTuple):
    """A request whose graphs have been read."""

    graphs: RequestGraphs
    level: float | None
    span: trace.SpanContext = trace.INVALID_SPAN_CONTEXT


class Service:
    """The model and its threads: one reads requests, one predicts in batches, one explains.

    ``name`` and ``version`` are those under which it is served; by default the model's own name.
    """

    def __init__(
        self,
        trained: TrainedModel,
        config: ServeConfig,
        metrics: Metrics | None = None,
        *,
        name: str = "",
        version: str = "",
    ) -> None:
        self.trained, self.config, self.metrics = trained, config, metrics or Metrics()
        self.key = (name or trained.name, version or "1")
        self.labels = f'model="{self.key[0]}"' + (f',version="{version}"' if version else "")
        self.domain = None if config.onnx else trained.domain
        trained.model.eval()
        self.model: nn.Module = trained.predictor()
        if config.onnx:
            check_onnx(config.onnx, trained)
            self.model = OnnxModel(config.onnx, trained, threads=config.threads)
            try:
                check_export(self.model, trained)
            except InputError as error:
                raise InputError(f"{config.onnx}: {error}; export the model again") from None
        self._reader, self._explainer = Worker(config.max_waiting), Worker(MAX_EXPLANATIONS)
        self._batcher: Batcher[ReadRequest, Rows] = Batcher(
            self._predict,
            measure=lambda request: int(request.graphs.graphs.node_ptr[-1]),
            window=config.window_ms / 1000,
            max_batch=config.max_batch,
            max_size=config.max_nodes,
            max_waiting=config.max_waiting,
        )

    def count_waiting(self) -> int:
        """Requests that wait or are computed."""
        return self._reader.waiting + self._batcher.waiting + self._explainer.waiting

    def close(self) -> None:
        """Drop what waits. A batch that has begun is finished in its thread, an explanation ends at its next step."""
        self._reader.close()
        self._explainer.close()
        self._batcher.close()

    async def predict(self, request: PredictRequest) -> Rows:
        """The predictions for a request, with the reason in place of those that cannot be read.

        Its graphs are read in a thread of their own, so that batches go on.
        """
        read = await self._reader.run(lambda check: read_request(request, self.trained, self.config, check))
        rows = await self._batcher.submit(ReadRequest(read, request.level, trace.get_current_span().get_span_context()))
        if not read.errors:
            return rows
        self.metrics.count(f"mnagt_unread_total{{{self.labels}}}", len(read.errors))
        predictions = iter(rows)
        return [
            {ERROR: read.errors[entry]} if entry in read.errors else next(predictions)
            for entry in range(len(rows) + len(read.errors))
        ]

    async def explain(self, request: ExplainRequest) -> dict[str, Any]:
        """The explanation of one prediction."""
        read = await self._reader.run(lambda check: self._read_explained(request, check))
        return await self._explainer.run(lambda check: self._explain(request, read, check))

    def _predict(self, requests: Sequence[ReadRequest]) -> list[Rows | Exception]:
        """The predictions for each request, or the reason why there are none."""
        model, links = "/".join(self.key), [trace.Link(request.span) for request in requests]
        tracer, attributes = trace.get_tracer("mnagt"), {"mnagt.model": model, "mnagt.requests": len(requests)}
        with tracer.start_as_current_span("batch", links=links, attributes=attributes):
            return self._predict_batch(requests)

    def _predict_batch(self, requests: Sequence[ReadRequest]) -> list[Rows | Exception]:
        self.metrics.observe("mnagt_batch_requests", len(requests), SIZES)
        results: list[Rows | Exception] = []
        outputs = self._compute_requests([request.graphs for request in requests])
        for request, output in zip(requests, outputs, strict=True):
            if isinstance(output, InputError):
                results.append(output)
                continue
            try:
                results.append(self._format(request.graphs, output, request.level))
                self.metrics.count(f"mnagt_graphs_total{{{self.labels}}}", len(output))
            except InputError as error:
                results.append(error)
        return results

    def _compute_requests(
        self, requests: Sequence[RequestGraphs]
    ) -> Iterator[Float[Tensor, "graphs outputs"] | InputError]:
        """``_compute`` for the requests, or why it cannot be done; molecules, which have texts, and graphs apart."""
        for _, group in groupby(requests, lambda request: request.graphs.texts is None):
            parts = [request.graphs for request in group]
            graphs = concatenate(parts)
            try:
                output = self._compute(graphs, torch.arange(len(graphs)))
            except InputError as error:
                yield from [error] * len(parts)
                continue
            if self.domain is not None and self._is_finite(output):
                self._count_graphs(self.domain, graphs, output[:, 0])
            yield from output.split([len(part) for part in parts])

    def _compute(self, graphs: PackedDataset, indices: Int[Tensor, "some"]) -> Float[Tensor, "some outputs"]:
        """Outputs; and distances in a first column, if the model has a domain."""
        num, model = len(indices), self.model
        if not self.config.onnx:
            model = self.trained.predictor(num, with_distances=self.domain is not None)
        return compute_outputs(model, graphs, indices, batch_size=num)

    def _count_graphs(self, domain: Domain, graphs: PackedDataset, distances: Float[Tensor, "graphs"]) -> None:
        """Count the graphs in the bins of each feature, and those outside of the domain."""
        self.metrics.count(f"mnagt_graphs_outside_total{{{self.labels}}}", int((distances > 1).sum()))
        counts = count_bins(domain.bins, graphs.batch(torch.arange(len(graphs))), distances)
        for name, counted in counts.items():
            for i, count in enumerate(counted.tolist()):
                if count:
                    self.metrics.count(self._bin_sample(name, i), count)

    def _is_finite(self, output: Float[Tensor, "graphs outputs"]) -> bool:
        """Whether what ``_compute`` gives are finite numbers."""
        if self.domain is None:
            return self.trained.task.is_finite(output)
        return bool(output[:, 0].isfinite().all()) and self.trained.task.is_finite(output[:, 1:])

    def measure_drift(self, samples: Mapping[str, float]) -> dict[str, float]:
        """The drift of each feature, from the samples of all worker processes."""
        bins = {} if self.domain is None else self.domain.bins
        counts = {
            name: torch.tensor([samples.get(self._bin_sample(name, i), 0.0) for i in range(len(each.counts))])
            for name, each in bins.items()
        }
        drifts = measure_drift(bins, counts)
        return {f'mnagt_drift_psi{{{self.labels},feature="{name}"}}': each.psi for name, each in drifts.items()}

    def _bin_sample(self, feature: str, index: int) -> str:
        return f'mnagt_graphs_by_bin_total{{{self.labels},feature="{feature}",bin="{index}"}}'

    def _format(self, request: RequestGraphs, output: Float[Tensor, "graphs outputs"], level: float | None) -> Rows:
        """A JSON object for each graph, from what ``_compute`` gives."""
        if not self._is_finite(output):
            raise InputError(_NOT_FINITE)
        distances = None
        if self.domain is not None:
            output, distances = output[:, 1:], output[:, 0]
        last = distance_column(distances)
        if request.functions:
            suggestions = self.trained.suggest(output)
            columns = {
                "line": [function.line for function in request.functions],
                "function": [function.name for function in request.functions],
                "names": [[{"name": "_".join(words), "p": p} for words, p in names] for names in suggestions],
            }
        else:
            columns = self.trained.decode(output, level)
        columns |= last
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _read_explained(self, request: ExplainRequest, check: Check) -> RequestGraphs:
        """The graphs of a request; the one to explain is among them, and not too large."""
        read, which = read_request(request, self.trained, self.config, check), request.which
        if which >= (entries := len(read.graphs) + len(read.errors)):
            raise InputError(f"which: expected 0 to {entries - 1}, got {which}")
        if (nodes := int(read.graphs.sizes[read.row(which)])) > self.config.max_explained:
            raise InputError(f"{nodes:,} nodes; graphs of up to {self.config.max_explained:,} nodes are explained")
        return read

    def _explain(self, request: ExplainRequest, read: RequestGraphs, check: Check) -> dict[str, Any]:
        """The prediction for one graph with its attributions, its kernel weights and a drawing."""
        from mnagt.explain.explanation import explain
        from mnagt.explain.kernel_statistics import element_symbol

        which = read.row(request.which)
        index, functions = torch.tensor([which]), read.functions[which : which + 1]
        output = self._compute(read.graphs, index)
        (prediction,) = self._format(RequestGraphs(read.graphs, functions), output, request.level)
        check()
        (explanation,) = explain(self.trained, read.graphs, index, target=request.target, steps=STEPS, on_step=check)
        if not explanation.attribution.nodes.isfinite().all():
            raise InputError(_NOT_FINITE)
        smiles = None if request.smiles is None else explanation.smiles
        names = self.trained.vocabularies.get("node_labels/0", ())
        if find_molecule_format(self.trained.model.features):
            names = [element_symbol(number) for number in range(1, ATOMS[0] + 1)]
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
            "served_as": {"name": self.key[0], "version": self.key[1]},
            "trained_on": str(trained.origin.get("dataset", "")),
            "task": task,
            "predicts": trained.task.describe(),
            "reads": list(list_input_kinds(trained)),
            "components": count_components(trained.model.features),
            "features": asdict(trained.model.features),
            "is_calibrated": trained.calibration is not None,
            "gives_distances": self.domain is not None,
            "explains": trained.task.level == "graph",
            "limits": {name: getattr(config, name) for name in LIMITS}
            | {"nodes_in_one_graph": find_largest_graph(trained, config)},
            "version": __version__,
        }

    async def wait(self, result: Coroutine[Any, Any, Result], request: Request) -> Result:
        """Wait for ``result`` up to the time limit, or until the client is gone; errors become HTTP errors."""
        try:
            async with asyncio.timeout(self.config.seconds):
                return await _unless_gone(result, request)
        except asyncio.QueueFull:
            raise HTTPException(429, "too many requests are waiting; try again later") from None
        except AbandonedError:
            raise HTTPException(503, "the service is shutting down") from None
        except TimeoutError:
            raise HTTPException(503, f"no answer within {self.config.seconds:g} s; send fewer graphs at once") from None
        except InputError as error:
            raise HTTPException(422, str(error)) from None


async def _unless_gone(result: Coroutine[Any, Any, Result], request: Request) -> Result:
    """Wait for ``result``; it is cancelled if the client closes the connection first, or if this is cancelled."""
    task = asyncio.ensure_future(result)
    gone = asyncio.ensure_future(request.receive())  # the body has been read: all that may come is the end
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client closed the connection")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


def _round(values: Float[Tensor, "..."]) -> list:
    return torch.round(values.double(), decimals=6).tolist()
