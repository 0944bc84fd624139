"""Settings of the service."""

import os
from dataclasses import dataclass, replace
from typing import Annotated

from mnagt.settings import Ge, Gt, Le, NonNegativeFloat, NonNegativeInt, PositiveInt, Settings

MAX_ENTRIES = 10_000
"""Molecules or graphs that a request may list, whatever the settings: more are refused while the body is validated."""


@dataclass(frozen=True)
class ServeConfig(Settings):
    """Address, processes, batching and limits of the service."""

    host: str = "127.0.0.1"
    """Address to listen on; with 0.0.0.0 other machines can connect."""
    port: Annotated[int, Ge(1), Le(65535)] = 8000
    """Port to listen on."""
    token: str = ""
    """Bearer token that requests must send, as that of the caller default; none is needed if empty."""
    tokens: str = ""
    """TOML file with a token and a rate for each caller."""
    cors_origins: tuple[str, ...] = ()
    """Sites whose pages may send requests, such as https://lab.example; * for any."""
    tls_cert: str = ""
    """Certificate (PEM): the service then speaks HTTPS."""
    tls_key: str = ""
    """Private key of the certificate (PEM), if that does not hold it."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may be sent to, besides addresses, localhost and this machine's name; * for any."""
    workers: PositiveInt = 1
    """Processes, each with a copy of the model."""
    threads: PositiveInt = 1
    """Threads of each process; one is fastest for small graphs."""
    reload_seconds: Annotated[float, Gt(0)] = 5.0
    """How often a folder of models is read again, in seconds."""
    onnx: str = ""
    """The model's ONNX export: ONNX Runtime then computes predictions, several times as fast."""
    window_ms: NonNegativeFloat = 2.0
    """How long the first request of a batch waits for others, in milliseconds."""
    max_batch: PositiveInt = 64
    """Largest number of requests in a batch."""
    max_waiting: PositiveInt = 256
    """Largest number of waiting requests; others are refused."""
    max_body: PositiveInt = 1_000_000
    """Largest size of a request, in bytes."""
    max_graphs: Annotated[int, Ge(1), Le(MAX_ENTRIES)] = 256
    """Most molecules, graphs or functions in a request."""
    max_nodes: Annotated[int, Ge(4)] = 4000
    """Most nodes in a request; a single graph may have a quarter of them."""
    max_explained: NonNegativeInt = 300
    """Most nodes of a graph that is explained, which takes as long as dozens of predictions."""
    max_described: PositiveInt = 300
    """Most atoms of a molecule for a model that reads RDKit's descriptors: their time grows with its fourth power."""
    max_edges: PositiveInt = 40_000
    """Most edges in a request."""
    max_text: PositiveInt = 2000
    """Most characters of a SMILES."""
    seconds: Annotated[float, Gt(0)] = 20.0
    """Time limit of a request, in seconds."""
    header_seconds: Annotated[float, Gt(0)] = 10.0
    """Time in which a connection must send the head of a request."""
    body_seconds: Annotated[float, Gt(0)] = 20.0
    """Time in which the body of a request must come."""
    response_seconds: Annotated[float, Gt(0)] = 20.0
    """Time in which a client must read what it is sent; then the connection is closed."""
    idle_seconds: PositiveInt = 75
    """Time after which a connection without requests is closed. Clients and proxies should give idle connections up
    earlier: a request that meets a closing connection is lost."""
    shutdown_seconds: PositiveInt = 10
    """Time that requests under way have when the service ends."""
    access_log: bool = False
    """Write a line of JSON for each request to standard error."""

    @property
    def max_graph_nodes(self) -> int:
        """Most nodes of a single graph: attention is quadratic in them."""
        return self.max_nodes // 4


def read_token(config: ServeConfig) -> ServeConfig:
    """The settings with the token in ``MNAGT_TOKEN``, where they have none."""
    return replace(config, token=config.token or os.environ.get("MNAGT_TOKEN", ""))
