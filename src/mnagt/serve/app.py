"""The HTTP service: predictions and explanations as JSON, and a page to try them on.

It makes no requests to other hosts and keeps nothing of the requests it gets. Malformed requests get a status of 4xx
and a message that names the field.
"""

import hmac
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from mnagt.errors import InputError
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.serve.config import ServeConfig
from mnagt.serve.schemas import ExplainRequest, PredictRequest
from mnagt.serve.service import Service
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


class Refusal(BaseModel):
    """Why a request is refused."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "the body is not JSON"},
    401: {"model": Refusal, "description": "the token is missing or wrong"},
    413: {"model": Refusal, "description": "the body is too long"},
    422: {"model": Refusal, "description": "a field cannot be read; detail names it"},
    429: {"model": Refusal, "description": "too many requests are waiting"},
    503: {"model": Refusal, "description": "no answer within the time limit"},
}
_FOLDER, _CONFIG = "MNAGT_SERVE_MODEL", "MNAGT_SERVE_CONFIG"
"""Environment variables that pass the model and the settings on to worker processes."""

_log = logging.getLogger(__name__)


class AsciiResponse(JSONResponse):
    """JSON in ASCII, which can also quote half of a surrogate pair from a request."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def create_app(model: TrainedModel | Path | str, config: ServeConfig | None = None) -> FastAPI:
    """An ASGI application that serves ``model``, or the model in a folder."""
    config = config or ServeConfig()
    service = Service(model if isinstance(model, TrainedModel) else load_model(model), config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title=f"mnagt: {service.trained.name}",
        version=__version__,
        description="Predictions of a graph model, and explanations of them.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=AsciiResponse,
    )
    app.state.service = service
    app.add_middleware(_Middleware, service=service)
    for kind in (StarletteHTTPException, RequestValidationError):
        app.exception_handler(kind)(_format_error)
    _add_routes(app, service)
    for path, name in FILES.items():
        app.add_route(path, lambda request, name=name: FileResponse(PAGE / name), include_in_schema=False)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes; all but /health need the token, unless that is empty."""

    async def check_token(request: Request) -> None:
        given, token = request.headers.get("authorization", "").encode("latin-1"), service.config.token
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "send the token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})

    guarded: dict[str, Any] = {"dependencies": [Depends(check_token)]}

    @app.post("/predict", responses=REFUSALS, **guarded)
    async def predict(request: PredictRequest) -> dict[str, list[dict[str, Any]]]:
        """A prediction for each graph, in the order of the request."""
        return {"predictions": await service.limit_time(service.predictions.submit(request))}

    @app.post("/explain", responses=REFUSALS, **guarded)
    async def explain(request: ExplainRequest) -> dict[str, Any]:
        """The prediction for one graph, the attribution of each node, and the kernel weights of each layer."""
        return await service.limit_time(service.explanations.submit(request))

    @app.get("/model", responses={401: REFUSALS[401]}, **guarded)
    async def model() -> dict[str, Any]:
        """What the model reads and predicts, and the limits of requests."""
        return service.describe()

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service is up."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: REFUSALS[401]}, **guarded)
    async def metrics() -> PlainTextResponse:
        """Counters of the process that answers, in Prometheus's text format."""
        return PlainTextResponse(service.metrics.to_text(), media_type="text/plain; version=0.0.4")


async def _format_error(request: Request, error: Exception) -> Response:
    """A one-line message that names the field and does not repeat what was sent."""
    if isinstance(error, StarletteHTTPException):
        return AsciiResponse({"detail": error.detail}, error.status_code, headers=error.headers)
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return AsciiResponse({"detail": f"not JSON, at character {first['loc'][1]}: {first['ctx']['error']}"}, 400)
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:])[1:80]
    return AsciiResponse({"detail": f"{field}: {first['msg']}" if field else first["msg"]}, 422)


class _Middleware:
    """Limits the size of requests, adds security headers and counts requests."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics, max_body, start = self.service.metrics, self.service.config.max_body, time.perf_counter()
        status, received = 500, 0

        async def limited_receive() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > max_body:
                raise HTTPException(413, f"a request may have {max_body:,} bytes; send fewer graphs at once")
            return message

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
            await send(message)

        try:
            await self.app(scope, limited_receive, send_with_headers)
        finally:
            path = scope["route"].path if "route" in scope else "other"
            metrics.requests[path, status] += 1
            if path in ("/predict", "/explain"):
                metrics.seconds.add(time.perf_counter() - start)


def create_worker_app() -> FastAPI:
    """The application of one of several worker processes, configured by environment variables."""
    config = ServeConfig(**json.loads(os.environ[_CONFIG]))
    torch.set_num_threads(config.threads)
    return create_app(os.environ[_FOLDER], config)


def serve(
    folder: Path | str, config: ServeConfig | None = None, *, say: Callable[[str], object] = lambda line: None
) -> None:
    """Serve the model in ``folder`` until interrupted; ``say`` is called with the address."""
    import uvicorn

    config = config or ServeConfig()
    torch.set_num_threads(config.threads)
    app = create_app(folder, config)  # in this process too, so that errors are raised here
    if not config.token and config.host not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("anyone who reaches %s can send requests: set a token", config.host)
    host, port = config.host, config.port
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
    say(f"http://{host}:{port}  (Ctrl-C ends)")
    run = partial(uvicorn.run, host=host, port=port, log_level="warning", server_header=False)
    if config.workers == 1:
        run(app)
    else:
        os.environ |= {_FOLDER: str(folder), _CONFIG: json.dumps(asdict(config))}
        run("mnagt.serve.app:create_worker_app", factory=True, workers=config.workers)
