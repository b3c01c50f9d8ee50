"""The server: its socket, its connections and its end."""

import errno
import logging
import os
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.launch.signals import handled_by

CONNECTION_LIMIT = 960  # Beyond it the answer is 503. Most systems allow a program 1,024 open files.
END_LIMIT_S = 5  # to answer the requests that have arrived when the server ends

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
    options: dict[str, Any] = {"http": "h11", "ws": "none", "loop": "asyncio", "lifespan": "on"}
    options |= {"limit_concurrency": CONNECTION_LIMIT, "timeout_graceful_shutdown": END_LIMIT_S}
    options |= {"log_config": None, "log_level": "error", "access_log": False}
    options |= {"proxy_headers": False, "server_header": False, "date_header": False, "headers": _HEADERS}
    return uvicorn.Server(uvicorn.Config(application, **options))


def serve_until_signal(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP. Requests that have arrived by then are answered, for some seconds."""

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn would log a traceback for each request that has not arrived when the server ends.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    with handled_by(end):  # uvicorn raises SIGINT and SIGTERM again at its end.
        server.run(sockets=[listening])
