"""The HTTP service: predictions and explanations as JSON, and a page to try them on.

It makes no requests to other hosts and keeps nothing of the requests it gets. Malformed requests get a status of 4xx
and a message that names the field.
"""

import asyncio
import hmac
import json
import logging
import multiprocessing
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from mnagt.errors import InputError
from mnagt.inference.ensemble import load_models
from mnagt.inference.model_folder import TrainedModel
from mnagt.serve.config import ServeConfig
from mnagt.serve.middleware import AsciiResponse, Middleware, TimedProtocol
from mnagt.serve.schemas import ExplainRequest, PredictRequest
from mnagt.serve.service import Service
from mnagt.settings import from_dict
from mnagt.version import __version__

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}


class Refusal(BaseModel):
    """Why a request is refused."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "the body is not JSON"},
    401: {"model": Refusal, "description": "the token is missing or wrong"},
    408: {"model": Refusal, "description": "the body does not come in time"},
    413: {"model": Refusal, "description": "the body is too long"},
    421: {"model": Refusal, "description": "the request is for a host name that is not served"},
    422: {"model": Refusal, "description": "a field cannot be read; detail names it"},
    429: {"model": Refusal, "description": "too many requests are waiting"},
    503: {"model": Refusal, "description": "no answer within the time limit"},
}
START_SECONDS = 120
"""Time in which a worker process must answer the parent; importing takes long on a busy machine."""
_FOLDER, _CONFIG, _METRICS = "MNAGT_SERVE_MODEL", "MNAGT_SERVE_CONFIG", "MNAGT_SERVE_METRICS"
"""Environment variables that pass the model, the settings and the folder of metrics on to worker processes."""

_log = logging.getLogger(__name__)


def create_app(
    model: TrainedModel | Path | str, config: ServeConfig | None = None, *, metrics_folder: Path | None = None
) -> FastAPI:
    """An ASGI application that serves ``model``, or the model in a folder.

    Applications of several processes that share a ``metrics_folder`` answer /metrics for all of them.
    """
    config = config or ServeConfig()
    loaded = model if isinstance(model, TrainedModel) else load_models([model])
    service = Service(loaded, config, metrics_folder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        saving = asyncio.create_task(_save_metrics(service))
        yield
        saving.cancel()
        service.metrics.save()
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
    app.add_middleware(Middleware, config=config, metrics=service.metrics, model=service.trained.name)
    for kind in (StarletteHTTPException, RequestValidationError):
        app.exception_handler(kind)(_format_error)
    _add_routes(app, service)
    for path, name in FILES.items():
        app.add_route(path, lambda request, name=name: FileResponse(PAGE / name), include_in_schema=False)
    return app


async def _save_metrics(service: Service) -> None:
    while True:
        service.metrics.save()
        await asyncio.sleep(1)


def _add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes; all but the probes need the token, unless that is empty."""

    async def check_token(request: Request) -> None:
        given, token = request.headers.get("authorization", "").encode("latin-1"), service.config.token
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise HTTPException(401, "send the token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})

    guarded: dict[str, Any] = {"dependencies": [Depends(check_token)]}

    @app.post("/predict", responses=REFUSALS, **guarded)
    async def predict(request: PredictRequest, http: Request) -> dict[str, list[dict[str, Any]]]:
        """A prediction for each graph, in the order of the request."""
        return {"predictions": await service.wait(service.predict(request), http)}

    @app.post("/explain", responses=REFUSALS, **guarded)
    async def explain(request: ExplainRequest, http: Request) -> dict[str, Any]:
        """The prediction for one graph, the attribution of each node, and the kernel weights of each layer."""
        return await service.wait(service.explain(request), http)

    @app.get("/model", responses={401: REFUSALS[401]}, **guarded)
    async def model() -> dict[str, Any]:
        """What the model reads and predicts, and the limits of requests."""
        return service.describe()

    @app.get("/health")
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: REFUSALS[503]})
    async def readyz() -> dict[str, str]:
        """Whether requests should be sent here: not while as many wait as may."""
        if service.count_waiting() >= service.config.max_waiting:
            raise HTTPException(503, "not ready: too many requests are waiting")
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: REFUSALS[401]}, **guarded)
    async def metrics() -> PlainTextResponse:
        """Counters and gauges of all worker processes, in Prometheus's text format."""
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


def create_worker_app() -> FastAPI:
    """The application of one of several worker processes, configured by environment variables."""
    config = from_dict(ServeConfig, json.loads(os.environ[_CONFIG]), where=_CONFIG)
    set_up_process(config)
    return create_app(os.environ[_FOLDER], config, metrics_folder=Path(os.environ[_METRICS]))


def set_up_process(config: ServeConfig) -> None:
    """The threads of a process of the service, and its access log."""
    torch.set_num_threads(config.threads)
    access = logging.getLogger("mnagt.access")
    if config.access_log and not access.handlers:
        access.addHandler(logging.StreamHandler())
        access.propagate = False
        access.setLevel(logging.INFO)


def uvicorn_options(config: ServeConfig) -> dict[str, Any]:
    """The options of uvicorn that keep the limits of ``config``."""
    return {
        "http": partial(TimedProtocol, header_seconds=config.header_seconds),
        "timeout_keep_alive": config.idle_seconds,
        "timeout_graceful_shutdown": config.shutdown_seconds,
        "timeout_worker_healthcheck": START_SECONDS,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
    }


def _check_model(folder: Path | str, config: ServeConfig) -> None:
    create_app(folder, config).state.service.close()


def serve(
    folder: Path | str, config: ServeConfig | None = None, *, say: Callable[[str], object] = lambda line: None
) -> None:
    """Serve the model in ``folder`` until interrupted; ``say`` is called with the address."""
    import uvicorn

    config = config or ServeConfig()
    if not config.token and config.host not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("anyone who reaches %s can send requests: set a token", config.host)
    host, port = config.host, config.port
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
    run = partial(uvicorn.run, host=host, port=port, **uvicorn_options(config))
    address = f"http://{host}:{port}  (Ctrl-C ends)"
    if config.workers == 1:
        set_up_process(config)
        app = create_app(folder, config)
        say(address)
        run(app)
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # this process keeps no model
        pool.submit(_check_model, folder, config).result()
    with tempfile.TemporaryDirectory() as metrics_folder:
        os.environ |= {_FOLDER: str(folder), _CONFIG: json.dumps(asdict(config)), _METRICS: metrics_folder}
        say(address)
        run("mnagt.serve.app:create_worker_app", factory=True, workers=config.workers)
