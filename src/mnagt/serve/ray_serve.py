"""The service on several machines: its application as a deployment of Ray Serve, which needs ``ray[serve]``.

Ray's proxies take the requests and share them among replicas, each a process with the whole application. Addresses,
HTTPS and the time that a connection may take are Ray's; the other limits are those of ``ServeConfig``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mnagt.errors import InputError
from mnagt.serve.app import create_app, set_up_process
from mnagt.serve.config import ServeConfig
from mnagt.settings import from_dict, read_toml


def make_deployment(
    model: Path | str, config: ServeConfig | None = None, *, replicas: int = 2, cpus: float = 1.0
) -> Any:
    """An application of Ray Serve, for ``ray.serve.run``.

    Args:
        model: The folder of a model, or of several; every machine must have it at the same place.
        config: Limits, tokens and batching of each replica.
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
    config, folder = config or ServeConfig(), str(Path(model).resolve())
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: no such folder; give that of a model, as on all machines")

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
        health_check_period_s=2,
        health_check_timeout_s=10,
    ).bind()


def build(words: Mapping[str, str]) -> Any:
    """The same from the words of a command: ``serve run mnagt.serve.ray_serve:build model=runs/mine replicas=4``.

    Args:
        words: ``model``, ``replicas``, ``cpus``, and ``settings``, a TOML file with those of ``mnagt serve``.
    """
    given = {"model": "", "replicas": "2", "cpus": "1", "settings": ""} | dict(words)
    if unknown := given.keys() - {"model", "replicas", "cpus", "settings"}:
        raise InputError(f"unknown: {', '.join(sorted(unknown))}; give model, replicas, cpus, settings=FILE.toml")
    if not given["model"]:
        raise InputError("which model? give its folder: model=FOLDER")
    path = Path(given["settings"])
    config = from_dict(ServeConfig, read_toml(path), where=str(path)) if given["settings"] else None
    try:
        replicas, cpus = int(given["replicas"]), float(given["cpus"])
    except ValueError as error:
        raise InputError(f"replicas and cpus are numbers: {error}") from None
    return make_deployment(given["model"], config, replicas=replicas, cpus=cpus)
