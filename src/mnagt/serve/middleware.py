"""What every request passes: host, load and size are checked before its body is read; then it is counted and logged."""

import asyncio
import ipaddress
import json
import logging
import math
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import h11
from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from mnagt.serve.callers import Callers
from mnagt.serve.config import ServeConfig
from mnagt.serve.metrics import SECONDS, Metrics

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
COMPUTED = ("/predict", "/explain", "/infer")
"""Ends of paths that take time: too many of them at once are refused."""
OPEN = {
    *("/", "/page.css", "/page.js", "/icon.svg", "/openapi.json"),
    *("/health", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready"),
}
"""Paths for which no token is needed: the page and the probes."""
SERVICE = "mnagt.service"
"""The key in a request's scope for the service that answers it."""
MIN_CHUNK, FREE_CHUNKS = 16, 1000
"""Bytes of the chunks of a body, on average at least; how many may be smaller. Each costs as much to read."""

_access = logging.getLogger("mnagt.access")
_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class AsciiResponse(JSONResponse):
    """JSON in ASCII, which can also quote half of a surrogate pair from a request."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def refuse(path: str, detail: str, status: int, headers: Mapping[str, str] | None = None) -> AsciiResponse:
    """The response to a request that is refused; the Open Inference Protocol calls the reason ``error``."""
    return AsciiResponse({"error" if path.startswith("/v2") else "detail": detail}, status, headers=headers)


class Middleware:
    """Refuses requests for other hosts and requests beyond the limits; adds headers and an id; counts and logs."""

    def __init__(self, app: Any, config: ServeConfig, metrics: Metrics, callers: Callers) -> None:
        self.app, self.config, self.metrics, self.callers = app, config, metrics, callers
        self.computing = 0
        self.too_large = f"a request may have {config.max_body:,} bytes; send fewer graphs at once"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        request_id = headers.get(b"x-request-id", "")
        request_id = request_id if _REQUEST_ID.fullmatch(request_id) else uuid.uuid4().hex
        caller = self.callers.find(headers.get(b"authorization", "").encode("latin-1"))
        added = {**HEADERS, "X-Request-ID": request_id}

        async def send_with_headers(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if SERVICE in scope:
                    added["X-Model"] = "/".join(scope[SERVICE].key)
                message["headers"] += [(name.lower().encode(), text.encode()) for name, text in added.items()]
            await send(message)

        if scope["path"].endswith("/infer") and b"content-type" not in headers:  # clients of the protocol send none
            scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]
        is_computed = scope["path"].endswith(COMPUTED)
        self.computing += is_computed
        try:
            if refusal := self._find_refusal(scope["path"], headers, caller, is_computed):
                await refusal(scope, receive, send_with_headers)
            else:
                await self.app(scope, self._limit_body(receive), send_with_headers)
        finally:
            self.computing -= is_computed
            seconds, route = time.perf_counter() - start, scope.get("route")
            path = next((end for end in COMPUTED if scope["path"].endswith(end)), "other")
            path = path if route is None else route.path
            self.metrics.count(f'mnagt_requests_total{{path="{path}",status="{status}"}}')
            if caller and is_computed:
                self.metrics.count(f'mnagt_caller_requests_total{{caller="{caller}",status="{status}"}}')
            if is_computed and SERVICE in scope:
                self.metrics.observe("mnagt_request_seconds", seconds, SECONDS, scope[SERVICE].labels)
            if self.config.access_log:
                record = {"time": round(time.time(), 3), "id": request_id, "client": (scope["client"] or [None])[0]}
                record |= {"method": scope["method"], "path": scope["path"][:200], "status": status}
                record |= {"model": added["X-Model"]} if "X-Model" in added else {}
                record |= {"caller": caller} if caller else {}
                _access.info("%s", json.dumps(record | {"seconds": round(seconds, 4)}))

    def _find_refusal(
        self, path: str, headers: dict[bytes, str], caller: str | None, is_computed: bool
    ) -> AsciiResponse | None:
        """Why a request is not even read."""
        if not is_trusted(headers.get(b"host", ""), self.config):
            return refuse(path, "this host name is not served here; --hosts adds it", 421)
        if caller is None and path not in OPEN:
            detail = "send the token: Authorization: Bearer ..."
            return refuse(path, detail, 401, {"WWW-Authenticate": "Bearer"})
        if is_computed and caller and (seconds := self.callers.count(caller)):
            detail = f"more requests than {caller} may send; the next is allowed in {seconds:.3g} s"
            return refuse(path, detail, 429, {"Retry-After": str(math.ceil(seconds))})
        if is_computed and self.computing > self.config.max_waiting:
            return refuse(path, "too many requests are waiting; try again later", 429, {"Retry-After": "1"})
        length = headers.get(b"content-length", "")
        if length.isdecimal() and int(length[:20]) > self.config.max_body:
            return refuse(path, self.too_large, 413)
        return None

    def _limit_body(self, receive: Any) -> Callable[[], Any]:
        """``receive`` with limits on the size of the body and on the time that it takes to come."""
        max_body, received, is_complete = self.config.max_body, 0, False
        deadline = asyncio.get_running_loop().time() + self.config.body_seconds

        async def limited_receive() -> Any:
            nonlocal received, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"the body did not come within {self.config.body_seconds:g} s", {"Connection": "close"}
                ) from None
            received += len(message.get("body", b""))
            if received > max_body:
                raise HTTPException(413, self.too_large)
            is_complete = not message.get("more_body", False)
            return message

        return limited_receive


def is_trusted(host: str, config: ServeConfig) -> bool:
    """Whether a Host header names this service: an address, localhost, this machine, or one of ``hosts``.

    A page of another site can reach a service through a name of its own (DNS rebinding), and only through a name.

    >>> [is_trusted(host, ServeConfig()) for host in ("localhost:8000", "[::1]", "10.0.0.7:80", "attacker.example")]
    [True, True, True, False]
    """
    name, *served = (re.sub(r":\d*$", "", each.lower()).rstrip(".") for each in (host, *config.hosts))
    if "*" in config.hosts or name in {"localhost", socket.gethostname().lower(), *served}:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class TimedProtocol(H11Protocol):
    """Closes connections whose clients do not send the head of a request within ``header_seconds``, or do not read what
    they are sent within ``response_seconds``. Bodies in tiny chunks are refused."""

    def __init__(self, *args: Any, header_seconds: float, response_seconds: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_seconds, self._response_seconds = header_seconds, response_seconds
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._read_event, self._chunks, self._bytes = self.conn.next_event, 0, 0
        self.conn.next_event = self._count_chunks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1)  # writing is paused as soon as the system takes no more
        self._start_timer("head", self._header_seconds)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer("head")
        elif "head" not in self._timers:
            self._start_timer("head", self._header_seconds)

    def _count_chunks(self) -> Any:
        """The next event of h11."""
        event = self._read_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks, self._bytes = self._chunks + 1, self._bytes + len(event.data)
            if self._bytes < MIN_CHUNK * (self._chunks - FREE_CHUNKS):
                raise h11.RemoteProtocolError("tiny chunks")
        return event

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("response", self._response_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("response")

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop_timer(name)
        super().connection_lost(exc)

    def _start_timer(self, name: str, seconds: float) -> None:
        self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
