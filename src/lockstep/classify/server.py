"""The server: its socket, its connections and its end."""

import asyncio
import errno
import logging
import os
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.launch.signals import handled_by

HEAD_LIMIT_S = 10.0  # from a connection to the headers of its first request
REQUEST_LIMIT_S = 100.0  # for all of a request, more than the application's limits; at most twice this
CONNECTION_LIMIT = 960  # Most systems allow a program 1,024 open files.

_HEADERS = [
    ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]  # fmt: skip


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host name or address. Raises: LockstepError."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=CONNECTION_LIMIT)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LockstepError(
                f"--port {port}: another program uses it: give another one, or 0 for any that is free", ENVIRONMENT
            ) from None
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise LockstepError(f"cannot listen at --host {host} --port {port}: {cause}", ENVIRONMENT) from None


def url(host: str, listening: socket.socket) -> str:
    """Return the address of the page."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def server_of(application: Starlette) -> uvicorn.Server:
    """Return the server of an application, which is not started."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # It logs what it raises, and the answer says it.
    options: dict[str, Any] = {"http": _Connection, "ws": "none", "loop": "asyncio", "lifespan": "on"}
    options |= {"log_config": None, "log_level": "error", "access_log": False}
    options |= {"proxy_headers": False, "server_header": False, "date_header": False, "headers": _HEADERS}
    return uvicorn.Server(uvicorn.Config(application, **options))


def serve_until_signal(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP. Requests that have arrived by then are answered."""

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    with handled_by(end):  # uvicorn raises SIGINT and SIGTERM again at its end.
        server.run(sockets=[listening])


class _Connection(H11Protocol):
    """A connection, which is closed if a request takes too long, or at once if there are too many connections."""

    _limit: asyncio.TimerHandle | None = None
    _before: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > CONNECTION_LIMIT:
            transport.abort()
        self._limit = self.loop.call_later(HEAD_LIMIT_S, self._require_progress)

    def _require_progress(self) -> None:
        """Close the connection unless a request has begun since the last call."""
        if self.cycle is self._before:
            self.transport.abort()
        self._before = self.cycle
        self._limit = self.loop.call_later(REQUEST_LIMIT_S, self._require_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection when the server ends, unless its request has arrived."""
        if self.cycle is None or self.cycle.more_body:
            self.transport.abort()
        else:
            super().shutdown()
