"""The service on several machines: its application as a deployment of Ray Serve, which needs ``ray[serve]``.

Ray's proxies take the requests and share them among replicas, each a process with the whole application. Addresses,
HTTPS and the time that a connection may take are Ray's; the other limits are those of ``ServeConfig``.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnagt.errors import InputError
from mnagt.serve.app import create_app, set_up_process
from mnagt.serve.config import ServeConfig, read_token
from mnagt.settings import from_dict, read_toml

SETTINGS_OF_RAY = (
    *("host", "port", "tls_cert", "tls_key", "workers"),
    *("header_seconds", "response_seconds", "idle_seconds", "shutdown_seconds"),
)
"""Those of the server and its processes, for which Ray has settings of its own."""

_log = logging.getLogger(__name__)


def make_deployment(
    model: Path | str, config: ServeConfig | None = None, *, replicas: int = 2, cpus: float = 1.0
) -> Any:
    """An application of Ray Serve, for ``ray.serve.run``.

    Args:
        model: The folder of a model, or of several; every machine must have it at the same place.
        config: Limits, tokens and batching of each replica. ``MNAGT_TOKEN`` holds the token where it has none. Every
            machine must have the files it names at the same place.
        replicas: Processes, which Ray spreads over the machines.
        cpus: Processors that each reserves.

    >>> from mnagt.serve.ray_serve import make_deployment
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(make_deployment("runs/mine", replicas=4))  # doctest: +SKIP
    """
    try:
        from ray import serve
    except ImportError:
        raise InputError("Ray Serve is not installed: pip install 'ray[serve]'") from None
    config, folder = read_token(config or ServeConfig()), str(Path(model).resolve())
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; give that of a model, as on all machines")
    defaults = ServeConfig()
    if refused := [name for name in SETTINGS_OF_RAY if getattr(config, name) != getattr(defaults, name)]:
        raise InputError(f"{', '.join(refused)}: this is Ray's to decide; leave it out here, and tell `serve` or Ray")
    if not (config.token or config.tokens):
        _log.warning("anyone who reaches Ray's proxies can send requests: set MNAGT_TOKEN or tokens")
    files = {name: str(Path(path).resolve()) for name in ("tokens", "onnx") if (path := getattr(config, name))}
    config = replace(config, workers=replicas, **files)  # each replica allows its share of a caller's rate

    def make_app() -> Any:
        set_up_process(config)
        return create_app(folder, config)

    @serve.ingress(make_app)
    class Replica:
        """The application, in a process of its own."""

    deployment: Any = serve.deployment(Replica)
    return deployment.options(
        name="mnagt",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": cpus},
        max_ongoing_requests=config.max_waiting,
        max_queued_requests=config.max_waiting,
        health_check_period_s=2,
        health_check_timeout_s=10,
    ).bind()


def build(words: Mapping[str, str]) -> Any:
    """The same from the words of a command: ``serve run mnagt.serve.ray_serve:build model=runs/mine replicas=4``.

    Args:
        words: ``model``, ``replicas``, ``cpus``, and ``settings``, a TOML file with those of ``mnagt serve``.
    """
    options = {"model": "", "replicas": "2", "cpus": "1", "settings": ""} | dict(words)
    if unknown := options.keys() - {"model", "replicas", "cpus", "settings"}:
        raise InputError(f"unknown: {', '.join(sorted(unknown))}; give model, replicas, cpus, settings=FILE.toml")
    if not options["model"]:
        raise InputError("which model? give its folder: model=FOLDER")
    path = Path(options["settings"])
    config = from_dict(ServeConfig, read_toml(path), where=str(path)) if options["settings"] else None
    try:
        replicas, cpus = int(options["replicas"]), float(options["cpus"])
    except ValueError as error:
        raise InputError(f"replicas and cpus are numbers: {error}") from None
    return make_deployment(options["model"], config, replicas=replicas, cpus=cpus)
