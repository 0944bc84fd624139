"""The service: predictions and explanations over HTTP, and a page to try them on.

Nothing is fetched from elsewhere and nothing is kept of what is asked. Bad requests get an answer of the 400s that
names the field at fault.
"""

import asyncio
import hmac
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, TypeVar

import torch
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from torch import nn

from mnagt.errors import InputError
from mnagt.export import OnnxModel, check
from mnagt.serve.asked import Ask, Asked, AskOne, joined, kinds, read
from mnagt.serve.batching import Batcher, TooBusyError
from mnagt.serve.config import ServeConfig
from mnagt.serve.drawing import drawn
from mnagt.serve.metrics import Metrics
from mnagt.tasks import SubTokens, task_to_dict
from mnagt.training.fit import outputs
from mnagt.training.model_folder import Trained, load_model
from mnagt.version import __version__

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": {"properties": {"detail": {"type": "string"}}}}},
    }
    for status, text in (
        (400, "not JSON"),
        (401, "no token"),
        (413, "too long"),
        (422, "cannot be read; the field is named"),
        (429, "too busy"),
        (503, "took too long"),
    )
}
EXPLAINING = 8
"""Explanations that may wait; each takes as long as many predictions."""
STEPS = 32
"""Points at which gradients are taken for an attribution."""

_log = logging.getLogger(__name__)
Done = TypeVar("Done")


class Ascii(JSONResponse):
    """JSON in ASCII: half of a surrogate pair in what was asked can be told back."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Service:
    """The model, and what is done with it in threads."""

    def __init__(self, trained: Trained, config: ServeConfig) -> None:
        self.trained, self.config, self.metrics = trained, config, Metrics()
        self.model: nn.Module = trained.model.eval()
        if config.onnx:
            self.model = OnnxModel(config.onnx, trained, threads=config.threads)
            try:
                check(self.model, trained)
            except InputError as error:
                raise InputError(f"{config.onnx}: {error}; export the model again") from None
        self.explaining = ThreadPoolExecutor(1, thread_name_prefix="explain")
        self.waiting = 0

    def open(self) -> None:
        """To be called where the event loop runs."""
        config = self.config
        self.batcher: Batcher[Ask, list[dict[str, Any]]] = Batcher(
            self.answers, window=config.window_ms / 1000, max_batch=config.max_batch, max_waiting=config.max_waiting
        )
        self.batcher.told = self.metrics.batch.add

    def answers(self, asks: Sequence[Ask]) -> list[list[dict[str, Any]] | Exception]:
        """What the model says of each request."""
        told: list[list[dict[str, Any]] | Exception] = []
        readable: list[tuple[int, Asked]] = []
        for place, ask in enumerate(asks):
            try:
                readable.append((place, read(ask, self.trained, self.config)))
                told.append([])
            except InputError as error:
                told.append(error)
        for (place, asked), rows in zip(readable, self.outputs([asked for _, asked in readable]), strict=True):
            try:
                told[place] = self.rows(asked, rows, asks[place].level)
                self.metrics.graphs += len(rows)
            except InputError as error:
                told[place] = error
        return told

    def outputs(self, asked: Sequence[Asked]) -> Iterator[torch.Tensor]:
        """The model's outputs for each, in as few passes as ``max_nodes`` allows."""
        ends = accumulate(int(each.graphs.node_ptr[-1]) for each in asked)
        numbered = zip(ends, asked, strict=True)
        for _, some in groupby(numbered, lambda pair: (pair[0] - 1) // self.config.max_nodes):
            parts = [each.graphs for _, each in some]
            graphs = joined(parts)
            model = self.model if self.config.onnx else self.trained.quickest(len(graphs))
            output = outputs(model, graphs, torch.arange(len(graphs)), batch_size=len(graphs))
            yield from output.split([len(part) for part in parts])

    def rows(self, asked: Asked, output: torch.Tensor, level: float | None) -> list[dict[str, Any]]:
        """One answer a graph."""
        _check_finite(output)
        task = self.trained.task
        if asked.functions and isinstance(task, SubTokens):
            return [
                {
                    "line": function.line,
                    "function": function.name,
                    "names": [{"name": "_".join(words), "p": p} for words, p in likeliest],
                }
                for function, likeliest in zip(asked.functions, task.suggestions(output), strict=True)
            ]
        columns = self.trained.answers(output, level)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def explanation(self, ask: AskOne) -> dict[str, Any]:
        """All there is to say of one graph."""
        from mnagt.explain.explanation import explain

        asked = read(ask, self.trained, self.config)
        if ask.which >= len(asked.graphs):
            raise InputError(f"which: 0 to {len(asked.graphs) - 1} are there, got {ask.which}")
        if (nodes := int(asked.graphs.sizes[ask.which])) > self.config.max_explained:
            raise InputError(f"{nodes:,} nodes, and graphs of up to {self.config.max_explained:,} are explained")
        one = torch.tensor([ask.which])
        output = outputs(self.model, asked.graphs, one)
        function = asked.functions[ask.which] if asked.functions else None
        said = self.rows(replace(asked, functions=(function,) if function else ()), output, ask.level)[0]
        (told,) = explain(self.trained, asked.graphs, one, target=ask.target, steps=STEPS)
        _check_finite(told.attribution.nodes)
        words = self.trained.vocabularies.get("node_labels/0", ())
        smiles = None if ask.smiles is None else told.smiles
        return {
            "said": said,
            "explained": {"answer": told.question.answer, "unit": told.question.unit},
            "drawing": drawn(told.graph, smiles, function, words),
            "attribution": _rounded(told.attribution.nodes),
            "gap": round(told.attribution.gap, 6),
            "kernel_weights": [_rounded(layer) for layer in told.kernel_weights],
        }

    def about(self) -> dict[str, Any]:
        """What the page, and whoever calls, has to know."""
        trained, config = self.trained, self.config
        task = task_to_dict(trained.task)
        task.pop("words", None)  # thousands
        limits = ("max_body", "max_graphs", "max_nodes", "max_explained", "max_edges", "max_text", "seconds")
        return {
            "model": trained.name,
            "trained_on": str(trained.origin.get("dataset", "")),
            "task": task,
            "reads": list(kinds(trained)),
            "features": asdict(trained.model.features),
            "is_calibrated": trained.calibration is not None,
            "limits": {name: getattr(config, name) for name in limits} | {"nodes_in_one_graph": config.largest},
            "version": __version__,
        }

    async def within_time(self, answer: Awaitable[Done]) -> Done:
        try:
            return await asyncio.wait_for(answer, self.config.seconds)
        except TooBusyError:
            raise HTTPException(429, "too many questions are waiting; ask again later") from None
        except TimeoutError:
            raise HTTPException(503, f"no answer within {self.config.seconds:g} s; ask about less at once") from None
        except InputError as error:
            raise HTTPException(422, str(error)) from None

    async def explained(self, ask: AskOne) -> dict[str, Any]:
        if self.waiting >= EXPLAINING:
            raise TooBusyError
        self.waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self.explaining, self.explanation, ask)
        future.add_done_callback(self._explained)
        return await asyncio.shield(future)

    def _explained(self, future: "asyncio.Future[dict[str, Any]]") -> None:
        self.waiting -= 1
        if not future.cancelled():
            future.exception()  # whoever asked may be gone


def _check_finite(numbers: torch.Tensor) -> None:
    if not numbers.isfinite().all():
        raise InputError("the model comes to no finite answer; values are far from those it was trained on")


def _rounded(numbers: torch.Tensor) -> list:
    return torch.round(numbers.double(), decimals=6).tolist()


def create_app(model: Trained | Path | str, config: ServeConfig | None = None) -> FastAPI:
    """The service for this model, or for that of a folder, as an ASGI application."""
    config = config or ServeConfig()
    service = Service(model if isinstance(model, Trained) else load_model(model), config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.open()
        yield
        await service.batcher.close()
        service.explaining.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title=f"mnagt: {service.trained.name}",
        version=__version__,
        description="Answers of a graph model, and what they are due to.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=Ascii,
    )
    app.state.service = service
    app.add_middleware(_Outer, service=service)
    for kind in (StarletteHTTPException, RequestValidationError):
        app.exception_handler(kind)(_refused)

    _add_answers(app, service, Depends(_allowed(config.token)))
    for path, name in FILES.items():
        app.add_api_route(path, _sender(PAGE / name), include_in_schema=False)
    return app


def _allowed(token: str) -> Callable[[Request], Awaitable[None]]:
    """Refuses whoever does not send the token, if there is one."""

    async def allowed(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "send the token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})

    return allowed


def _add_answers(app: FastAPI, service: Service, allowed: Any) -> None:
    """All that can be asked; what is not public, of those ``allowed`` to."""
    guarded: dict[str, Any] = {"dependencies": [allowed]}

    @app.post("/predict", responses=REFUSALS, **guarded)
    async def predict(ask: Ask) -> dict[str, list[dict[str, Any]]]:
        """The model's answers, in the order of the question."""
        return {"answers": await service.within_time(service.batcher.ask(ask))}

    @app.post("/explain", responses=REFUSALS, **guarded)
    async def explain(ask: AskOne) -> dict[str, Any]:
        """One answer, how much of it is due to each node, and how nodes weigh their kernels, layer by layer."""
        return await service.within_time(service.explained(ask))

    @app.get("/model", responses={401: REFUSALS[401]}, **guarded)
    async def about() -> dict[str, Any]:
        """What the model reads and says, and what may be asked at once."""
        return service.about()

    @app.get("/health")
    async def health() -> dict[str, str]:
        """That the service is there."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: REFUSALS[401]}, **guarded)
    async def metrics() -> PlainTextResponse:
        """Counters in Prometheus's text format, of the process that answers."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _sender(path: Path) -> Callable[[], Awaitable[FileResponse]]:
    async def send() -> FileResponse:
        return FileResponse(path)

    return send


async def _refused(request: Request, error: Exception) -> Response:
    """In one line, and without what was sent: it may be huge, or no JSON."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])[:80]
        status = 400 if first["type"] == "json_invalid" else 422
        return Ascii({"detail": f"{where}: {first['msg']}" if where else first["msg"]}, status)
    assert isinstance(error, StarletteHTTPException)
    return Ascii({"detail": error.detail}, error.status_code, headers=error.headers)


class _Outer:
    """Around everything: limits the body, adds headers, counts."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics, most, start = self.service.metrics, self.service.config.max_body, time.perf_counter()
        status, received = 500, 0
        too_long = HTTPException(413, f"a request may have {most:,} bytes; ask about less at once")

        async def counted() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise too_long
            return message

        async def sent(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
            await send(message)

        length = dict(scope["headers"]).get(b"content-length", b"0")
        try:
            if not length.isdigit():
                await Ascii({"detail": "Content-Length: expected a number of bytes"}, 400)(scope, receive, sent)
            elif int(length[:20]) > most:
                await Ascii({"detail": too_long.detail}, 413)(scope, receive, sent)
            else:
                await self.app(scope, counted, sent)
        finally:
            path = scope["path"] if scope["path"] in KNOWN else "other"
            metrics.requests[path, status] += 1
            if path in ("/predict", "/explain"):
                metrics.seconds.add(time.perf_counter() - start)


KNOWN = {"/predict", "/explain", "/model", "/health", "/metrics", "/openapi.json", *FILES}

_FOLDER, _CONFIG = "MNAGT_SERVE_MODEL", "MNAGT_SERVE_CONFIG"


def app_of_environment() -> FastAPI:
    """The service in one of several processes."""
    config = ServeConfig(**json.loads(os.environ[_CONFIG]))
    torch.set_num_threads(config.threads)
    return create_app(os.environ[_FOLDER], config)


def serve(
    folder: Path | str, config: ServeConfig | None = None, *, say: Callable[[str], object] = lambda line: None
) -> None:
    """Answer until interrupted; ``say`` is told where."""
    import uvicorn

    config = config or ServeConfig()
    torch.set_num_threads(config.threads)
    app = create_app(folder, config)  # errors first, whatever the number of processes
    if not config.token and config.host not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("anyone who reaches %s can ask: set a token", config.host)
    _check_free(config.host, config.port)
    say(f"http://{config.host}:{config.port}  (Ctrl-C ends)")
    settings: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "log_level": "warning",
        "server_header": False,
    }
    if config.workers == 1:
        uvicorn.run(app, **settings)
        return
    os.environ |= {_FOLDER: str(folder), _CONFIG: json.dumps(asdict(config))}
    uvicorn.run("mnagt.serve.app:app_of_environment", factory=True, workers=config.workers, **settings)


def _check_free(host: str, port: int) -> None:
    """An error that says what to do, where nobody could listen."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
