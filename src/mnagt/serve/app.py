"""The HTTP service: predictions and explanations as JSON, and a page to try them on.

It makes no requests to other hosts and keeps nothing of the requests it gets. Malformed requests get a status of 4xx
and a message that names the field.
"""

import asyncio
import gc
import json
import logging
import multiprocessing
import os
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, PlainTextResponse, Response
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from mnagt.errors import InputError
from mnagt.inference.ensemble import load_models
from mnagt.inference.model_folder import TrainedModel
from mnagt.serve.callers import Callers
from mnagt.serve.config import ServeConfig, read_token
from mnagt.serve.metrics import Metrics
from mnagt.serve.middleware import COMPUTED, SERVICE, AsciiResponse, Middleware, TimedProtocol, refuse
from mnagt.serve.models import Models, find_models, is_model_folder
from mnagt.serve.open_inference import add_v2_routes
from mnagt.serve.schemas import ExplainRequest, Predictions, PredictRequest
from mnagt.serve.service import Service
from mnagt.settings import from_dict
from mnagt.version import __version__

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}


class Refusal(BaseModel):
    """Why a request is refused; below /v2 the reason is called ``error``."""

    detail: str = ""
    error: str = ""


REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "the body is not JSON"},
    401: {"model": Refusal, "description": "the token is missing or wrong"},
    404: {"model": Refusal, "description": "there is no such model, or several are served and none is named"},
    408: {"model": Refusal, "description": "the body does not come in time"},
    413: {"model": Refusal, "description": "the body is too long"},
    421: {"model": Refusal, "description": "the request is for a host name that is not served"},
    422: {"model": Refusal, "description": "a field cannot be read; detail names it"},
    429: {"model": Refusal, "description": "too many requests are waiting"},
    503: {"model": Refusal, "description": "no answer within the time limit"},
}
KINDS = {"constrained-int", "str", "list[str]"}
"""What pydantic calls the types that a category or a molecule may have; these are no fields."""
TELEMETRY: TelemetryConfig = {
    "metrics": False,
    "logs": False,  # they would hold what was sent
    "operation_spans": False,
    "exclude": lambda scope: not scope["path"].endswith(COMPUTED),
}
"""Of OpenTelemetry there is a span for each prediction or explanation, where an SDK is set up."""
ALLOWED_HEADERS = ("Authorization", "Content-Type", "X-Request-ID")
"""Of requests that pages of other sites may send."""
START_SECONDS = 120
"""Time in which a worker process must answer the parent; importing takes long on a busy machine."""
MAX_FILES = 65_536
"""Open files that a process asks the system for."""
_FOLDER, _CONFIG, _METRICS = "MNAGT_SERVE_MODEL", "MNAGT_SERVE_CONFIG", "MNAGT_SERVE_METRICS"
"""Environment variables that pass the model, the settings and the folder of metrics on to worker processes."""

_log = logging.getLogger(__name__)


def create_app(
    model: TrainedModel | Path | str, config: ServeConfig | None = None, *, metrics_folder: Path | None = None
) -> FastAPI:
    """An ASGI application that serves ``model``, the model in a folder, or all models in a folder of model folders.

    Applications of several processes that share a ``metrics_folder`` answer /metrics for all of them.
    """
    config = config or ServeConfig()
    callers = Callers(config)
    models, metrics = start_models(model, config, metrics_folder)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each) for each in (_save_metrics(metrics), _reload(models, metrics, config))]
        yield
        for task in tasks:
            task.cancel()
        metrics.save()
        for service in models.services:
            service.close()

    app = FastAPI(
        title=f"mnagt: {', '.join(models.table)}",
        version=__version__,
        description="Predictions of a graph model, and explanations of them.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=AsciiResponse,
        telemetry=TELEMETRY,
    )
    app.state.models = models
    app.add_middleware(Middleware, config=config, metrics=metrics, callers=callers)
    if config.cors_origins:
        exposed = ("X-Request-ID", "X-Model", "Retry-After")
        options = {"allow_methods": ("GET", "POST"), "allow_headers": ALLOWED_HEADERS, "expose_headers": exposed}
        origins = [origin.rstrip("/") for origin in config.cors_origins]  # browsers send them without
        app.add_middleware(CORSMiddleware, allow_origins=origins, **options)
    for kind in (StarletteHTTPException, RequestValidationError):
        app.exception_handler(kind)(_format_error)
    _add_routes(app, models, metrics, config)
    for path, name in FILES.items():
        app.add_route(path, lambda request, name=name: FileResponse(PAGE / name), include_in_schema=False)
    return app


def start_models(
    model: TrainedModel | Path | str, config: ServeConfig, metrics_folder: Path | None = None
) -> tuple[Models, Metrics]:
    """The services for a model or a folder, and their metrics."""
    metrics = Metrics(metrics_folder, lambda: models.count_waiting(), lambda samples: models.measure_drift(samples))

    def start(folder: Path, name: str, version: str) -> Service:
        return Service(load_models([folder]), config, metrics, name=name, version=version)

    root = None if isinstance(model, TrainedModel) or is_model_folder(Path(model)) else Path(model)
    if root is not None and root.is_dir() and find_models(root):
        if config.onnx:
            raise InputError("--onnx is the export of one model; give the folder of that model")
        models = Models(root, start)
        models.refresh()
        if not models.table:
            raise InputError(f"{root}: none of its models can be loaded; the messages above say why")
        return models, metrics
    service = Service(model if isinstance(model, TrainedModel) else load_models([model]), config, metrics)
    models = Models(None, start, (service.key[0], service))
    return models, metrics


async def _save_metrics(metrics: Metrics) -> None:
    while True:
        metrics.save()
        await asyncio.sleep(1)


async def _reload(models: Models, metrics: Metrics, config: ServeConfig) -> None:
    """Load what changes in a folder of models; what is replaced answers the requests that it has."""
    ending: set[asyncio.Task[None]] = set()

    async def end(service: Service) -> None:
        deadline = time.monotonic() + config.seconds + 1
        await asyncio.sleep(1)  # a request may have chosen it just now
        while service.count_waiting() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        service.close()

    while True:
        await asyncio.sleep(config.reload_seconds)
        try:
            replaced = await asyncio.to_thread(models.refresh)
        except (InputError, OSError) as error:
            _log.error("the models stay as they are: %s", error)
            continue
        for service in replaced:
            metrics.forget(service.labels)
            task = asyncio.create_task(end(service))
            ending.add(task)
            task.add_done_callback(ending.discard)


def _add_routes(app: FastAPI, models: Models, metrics: Metrics, config: ServeConfig) -> None:
    """Add the routes."""

    async def choose_only(http: Request) -> Service:
        return keep(http, models.choose())

    async def choose_name(name: str, http: Request) -> Service:
        return keep(http, models.choose(name))

    async def choose_version(name: str, version: str, http: Request) -> Service:
        return keep(http, models.choose(name, version))

    def keep(http: Request, service: Service) -> Service:
        http.scope[SERVICE] = service
        return service

    app.include_router(make_model_routes(choose_only))
    app.include_router(make_model_routes(choose_name), prefix="/models/{name}")
    app.include_router(make_model_routes(choose_version), prefix="/models/{name}/versions/{version}")
    choices = {"{name}": choose_name, "{name}/versions/{version}": choose_version}
    add_v2_routes(app, models, choices, REFUSALS)

    @app.get("/models", responses={401: REFUSALS[401]})
    async def list_models() -> dict[str, dict[str, float]]:
        """The versions of each model, with the share of the requests that each gets."""
        return {
            name: {version: model.shares.get(version, 0.0) for version in model.versions}
            for name, model in models.table.items()
        }

    @app.get("/health")
    @app.get("/livez")
    @app.get("/v2/health/live")
    async def livez() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: REFUSALS[503]})
    @app.get("/v2/health/ready", responses={503: REFUSALS[503]})
    async def readyz() -> dict[str, str]:
        """Whether requests should be sent here: not while as many wait as may."""
        if not models.table or models.count_waiting() >= config.max_waiting:
            raise HTTPException(503, "not ready: too many requests are waiting, or there is no model")
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: REFUSALS[401]})
    async def read_metrics() -> PlainTextResponse:
        """Counters and gauges of all worker processes, in Prometheus's text format."""
        return PlainTextResponse(metrics.to_text(), media_type="text/plain; version=0.0.4")


def make_model_routes(choose: Callable[..., Coroutine[Any, Any, Service]]) -> APIRouter:
    """The routes of a model; ``choose`` finds its service from the request."""
    router, responses = APIRouter(), REFUSALS

    @router.post("/predict", responses=responses)
    async def predict(
        request: PredictRequest, http: Request, service: Annotated[Service, Depends(choose)]
    ) -> Predictions:
        """A prediction for each graph, in the order of the request; a SMILES that cannot be read gets the reason."""
        return Predictions(predictions=await service.wait(service.predict(request), http))

    @router.post("/explain", responses=responses)
    async def explain(
        request: ExplainRequest, http: Request, service: Annotated[Service, Depends(choose)]
    ) -> dict[str, Any]:
        """The prediction for one graph, the attribution of each node, and the kernel weights of each layer."""
        return await service.wait(service.explain(request), http)

    @router.get("/model", responses={401: REFUSALS[401], 404: REFUSALS[404]})
    async def model(service: Annotated[Service, Depends(choose)]) -> dict[str, Any]:
        """What the model reads and predicts, and the limits of requests."""
        return service.describe()

    return router


async def _format_error(request: Request, error: Exception) -> Response:
    """A one-line message that names the field and does not repeat what was sent."""
    if isinstance(error, StarletteHTTPException):
        is_unreadable = error.status_code == 400 and error.__cause__  # FastAPI does not say why
        detail = f"not JSON: {error.__cause__}" if is_unreadable else error.detail
        return refuse(request.url.path, detail, error.status_code, error.headers)
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid" and "inference-header-content-length" in request.headers:
        return refuse(request.url.path, "binary tensors are not read; send JSON (binary_data=False)", 400)
    if first["type"] == "json_invalid":
        detail = f"not JSON, at character {first['loc'][1]}: {first['ctx']['error']}"
        return refuse(request.url.path, detail, 400)
    parts = [part for part in first["loc"][1:] if part not in KINDS]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)[1:80]
    return refuse(request.url.path, f"{field}: {first['msg']}" if field else first["msg"], 422)


def create_worker_app() -> FastAPI:
    """The application of one of several worker processes, configured by environment variables."""
    config = from_dict(ServeConfig, json.loads(os.environ[_CONFIG]), where=_CONFIG)
    set_up_process(config)
    return create_app(os.environ[_FOLDER], config, metrics_folder=Path(os.environ[_METRICS]))


def set_up_process(config: ServeConfig) -> None:
    """The threads of a process of the service, its access log, and its garbage collector.

    What is imported is left out of the collector's searches, which else take most of the time of a large request.
    """
    torch.set_num_threads(config.threads)
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    access = logging.getLogger("mnagt.access")
    if config.access_log and not access.handlers:
        access.addHandler(logging.StreamHandler())
        access.propagate = False
        access.setLevel(logging.INFO)


def uvicorn_options(config: ServeConfig) -> dict[str, Any]:
    """The options of uvicorn that keep the limits of ``config``."""
    return {
        "http": partial(TimedProtocol, header_seconds=config.header_seconds, response_seconds=config.response_seconds),
        "ws": "none",
        "timeout_keep_alive": config.idle_seconds,
        "timeout_graceful_shutdown": config.shutdown_seconds,
        "timeout_worker_healthcheck": START_SECONDS,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "ssl_certfile": config.tls_cert or None,
        "ssl_keyfile": config.tls_key or None,
    }


def raise_file_limit() -> None:
    """Let this process and its workers have as many connections as the system allows: each is an open file."""
    try:
        import resource
    except ImportError:  # Windows, where there is no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MAX_FILES:  # infinity is negative
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, MAX_FILES) if hard >= 0 else MAX_FILES, hard))


def check_tls(config: ServeConfig) -> None:
    """Refuse a certificate and a key that cannot be used."""
    if config.tls_key and not config.tls_cert:
        raise InputError("--tls-key is the key of a certificate; give that too: --tls-cert FILE")
    if config.tls_cert:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                config.tls_cert, config.tls_key or None, password=lambda: ""
            )
        except (OSError, ValueError) as error:  # among them ssl.SSLError; a key with a password is refused
            raise InputError(f"{config.tls_cert}: no certificate with its key, in PEM ({error})") from None


def _check_model(folder: Path | str, config: ServeConfig) -> None:
    for service in start_models(folder, config)[0].services:
        service.close()


def serve(
    folder: Path | str, config: ServeConfig | None = None, *, say: Callable[[str], object] = lambda line: None
) -> None:
    """Serve the model in ``folder``, or the models, until interrupted; ``say`` is called with the address."""
    import uvicorn

    config = read_token(config or ServeConfig())
    if not (config.token or config.tokens) and config.host not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("anyone who reaches %s can send requests: set a token", config.host)
    host, port = config.host, config.port
    check_tls(config)
    Callers(config)  # their file can be read
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port") from None
    raise_file_limit()
    run = partial(uvicorn.run, host=host, port=port, **uvicorn_options(config))
    address = f"{'https' if config.tls_cert else 'http'}://{host}:{port}  (Ctrl-C ends)"
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
