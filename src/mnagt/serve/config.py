"""Settings of the service."""

from dataclasses import dataclass

from mnagt.errors import InputError
from mnagt.settings import at_least


@dataclass(frozen=True)
class ServeConfig:
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: int = 8000
    """Port to listen on."""
    token: str = ""
    """What callers must send as a bearer token; none is asked for if empty."""
    workers: int = 1
    """Processes, each with the model."""
    threads: int = 1
    """Threads of each process; for small graphs one is fastest."""
    onnx: str = ""
    """The model's own ONNX export: predictions then come from ONNX Runtime, several times as fast."""
    window_ms: float = 2.0
    """How long the first question waits for others to be answered with."""
    max_batch: int = 64
    """Questions answered together at most."""
    max_waiting: int = 256
    """Questions that may wait; more are sent away."""
    max_body: int = 1_000_000
    """Bytes of a request."""
    max_graphs: int = 256
    """Molecules, graphs or functions in a request."""
    max_nodes: int = 4000
    """Nodes in a request; a single graph may have a quarter of them."""
    max_explained: int = 300
    """Nodes of a graph that is explained: it takes as long as dozens of answers."""
    max_edges: int = 40_000
    """Edges in a request."""
    max_text: int = 2000
    """Characters of a SMILES."""
    seconds: float = 20.0
    """After which an answer is given up."""

    def __post_init__(self) -> None:
        at_least(self, 0, "window_ms")
        at_least(
            self,
            1,
            "port",
            "workers",
            "threads",
            "max_batch",
            "max_waiting",
            "max_body",
            "max_graphs",
            "max_edges",
            "max_text",
        )
        at_least(self, 4, "max_nodes")
        if self.port > 65535:
            raise InputError(f"port counts to 65535, got {self.port}")
        if not self.seconds > 0:
            raise InputError(f"seconds must be above 0, got {self.seconds}")

    @property
    def largest(self) -> int:
        """Nodes of a single graph: attention looks at all their pairs."""
        return self.max_nodes // 4
