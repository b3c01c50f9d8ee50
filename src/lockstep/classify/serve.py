"""The web application: the page, POST /predict and GET /health; and its server.

Whatever it refuses, it refuses with a sentence.
"""

import asyncio
import base64
import contextlib
import json
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from types import FrameType
from typing import TypeAlias
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from numpy.typing import NDArray
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from lockstep import numerics
from lockstep.classify.classifier import Classifier
from lockstep.classify.decoder import Decoder
from lockstep.errors import DATA, ENVIRONMENT, LockstepError, printable
from lockstep.files import Record
from lockstep.launch.signals import StopRequest, handled_by
from lockstep.pages.page import address, template
from lockstep.pages.prediction import MARKS, Prediction, spotlights
from lockstep.text import size

BODY_LIMIT = 32_000_000  # bytes of a request. A phone's photo has up to 20 MB.
DRAIN_LIMIT = 128_000_000  # bytes that are read and dropped of a request that is refused
MEMORY_LIMIT = 200_000_000  # bytes of all requests that are being answered
CONNECTION_LIMIT = 960  # Most systems allow a program 1,024 open files.
HEAD_LIMIT_S = 10.0  # for the head of a request to arrive, and for an answer to be read
END_LIMIT_S = 3  # to answer the requests that have arrived when the server ends
FILE_LIMIT = 16  # files of a request
REQUEST_LIMIT_S = 60.0  # from the head of a request to its answer
TOP = 5  # classes in an answer
PIXEL_LIMIT = 55_000_000  # of a picture, as stored. A phone's photo has up to 50 million.
_WORKERS = 4  # threads that decode small pictures and classify, at most
# What a picture may take that is decoded beside others, and one that is decoded alone: see
# `decoder.answers`.
_SMALL = {"most_px": 2_000_000, "memory": 200_000_000, "seconds": 0.5}
_LARGE = {"most_px": PIXEL_LIMIT, "memory": 1_000_000_000, "seconds": 20.0}

Pixels: TypeAlias = NDArray[np.uint8]

_BEYOND = "it takes more than 1 GB or 20 s to decode: send it as a JPEG or PNG file, or smaller"
_LARGEST = "all requests together need too much memory, and this one is the largest"
_TYPE = (
    "send a picture as the body (Content-Type image/jpeg, for example), files in the field image "
    'or file of a form, or JSON {"image": BASE64}'
)
_FIELDS = ("image", "file")  # of a form or a JSON object
_PATHS = "this server answers GET /, GET /health and POST /predict"
_OWN = (
    "only this server's page may use it, at its address, as localhost, or by the name that it "
    "was started with (--host), and a page of another site by --allow-origin"
)
# A page that the network's user opens may load nothing from elsewhere, and no other page may frame
# it.
_POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


def application(
    classifier: Classifier, name: str, host: str, allow_origin: str | None = None
) -> Starlette:
    """Return the application that serves `classifier` under `name`, at the host name or address
    `host`. Pages of `allow_origin` may use it, too.

    Raises: LockstepError if it cannot classify pictures.
    """
    (prediction,) = classifier.predict([Image.new("RGB", (64, 64))])
    if prediction.error:
        raise LockstepError(
            f"{classifier.origin} cannot classify pictures: {prediction.error}", DATA
        )
    service = _Service(classifier, name, host, allow_origin)
    served = Starlette(
        routes=[
            Route("/", service.page),
            Route("/health", service.health),
            Route("/predict", service.predict, methods=["POST"]),
        ],
        exception_handlers=dict.fromkeys(
            (HTTPException, LockstepError, ClientDisconnect, Exception), _refused
        ),
        middleware=[
            Middleware(CORSMiddleware, allow_origins=[allow_origin], allow_methods=["GET", "POST"])
        ]
        if allow_origin
        else [],
        lifespan=service.running,
    )
    served.router.redirect_slashes = False  # to an address that the client states
    return served


class _Service:
    """The answers to requests: the pictures of all, from the bytes of a file to a prediction, in a
    bounded memory.

    Programs of their own decode the pictures. Each picture may first take what a small one takes,
    and several are decoded at once. One that needs more is decoded again in the program for large
    ones, one at a time, so that small ones do not wait for it. Of a request one picture at a time
    is decoded, so that it does not delay other requests.
    """

    def __init__(
        self, classifier: Classifier, name: str, host: str, allow_origin: str | None
    ) -> None:
        self._classifier = classifier
        self._allowed = allow_origin
        self._names = {"localhost", socket.gethostname().lower(), host.lower()}
        self._held: dict[Request, int] = {}  # bytes of the requests that are being answered
        workers = min(_WORKERS, numerics.workers(classifier.recipe.threads_per_tower))
        self._workers = numerics.pool(workers, "classify")
        self._alone = ThreadPoolExecutor(1, "decode")
        options = {"limit_px": PIXEL_LIMIT, **classifier.decoding._asdict()}
        self._decoders = [Decoder(**options, **_SMALL) for _ in range(workers)]
        self._idle = [*self._decoders]
        self._large = Decoder(**options, **_LARGE)
        _, *self._seen_px = classifier.recipe.augmentation.shape(*classifier.image_shape)
        self._template = template("lockstep.classify")
        self._about = {
            "name": name,
            "weights": classifier.origin.name,
            "classes": classifier.classes,
            "image_shape": classifier.image_shape,
        }

    @contextlib.asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """End the threads after the context."""
        try:
            yield
        finally:
            for pool in (self._workers, self._alone):
                pool.shutdown(wait=False, cancel_futures=True)
            for decoder in (*self._decoders, self._large):
                decoder.end()

    async def page(self, request: Request) -> Response:
        """Answer GET /."""
        self._require_own(request)
        nonce = secrets.token_urlsafe(16)
        text = self._template.render(
            nonce=nonce,
            seen_px=self._seen_px,
            body_limit=BODY_LIMIT,
            classifier=self._classifier,
            marks=MARKS,
            **self._about,
        )
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY.format(nonce)})

    async def health(self, request: Request) -> Response:
        """Answer GET /health: what is served."""
        self._require_own(request)
        return JSONResponse({"status": "ok", **self._about})

    async def predict(self, request: Request) -> Response:
        """Answer POST /predict. With ?input=png each prediction also has the picture as the network
        sees it.

        With ?evidence=png each also has that picture bright where it speaks for the class, or with
        multi-label data one for each label that is explained; None if the network cannot show it.
        """
        self._require_own(request)
        self._held[request] = 0
        wanted = [name for name in ("input", "evidence") if request.query_params.get(name) == "png"]
        turn = asyncio.Lock()
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S) as request.state.timeout:
                pictures = await self._pictures(request)
                records = await asyncio.gather(
                    *(self._record(name, picture, wanted, turn) for name, picture in pictures)
                )
        except TimeoutError:
            if request not in self._held:
                raise _busy(_LARGEST) from None
            raise HTTPException(
                504,
                f"no answer within {REQUEST_LIMIT_S:g} s, or not the whole request: send fewer "
                f"pictures at a time",
                {"Connection": "close"},
            ) from None
        finally:
            self._held.pop(request, None)
        errors = [
            f"{record['source']}: {record['error']}"
            for record in records
            if record["error"] is not None
        ]
        if len(errors) == len(records):
            return JSONResponse({"error": "; ".join(errors), "predictions": records}, 422)
        return JSONResponse({"predictions": records})

    def _require_own(self, request: Request) -> None:
        """Raise an HTTPException for a request of another site's page, by its origin or by a name
        that is not ours.

        A page of another site can send a request here, and by a name of its own that leads to this
        machine (DNS rebinding) it could read the answer. It has no such way with an address.
        """
        host = request.headers.get("host", "")
        ours = False
        with contextlib.suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            ours = name in self._names or bool(ip_address(name))
        own = f"http://{host}"
        if not ours or request.headers.get("origin", own) not in (own, self._allowed):
            raise HTTPException(403, _OWN)

    async def _record(
        self, name: str, picture: bytes, wanted: list[str], turn: asyncio.Lock
    ) -> Record:
        run = asyncio.get_running_loop().run_in_executor
        try:
            async with turn:
                pixels = await run(self._workers, self._decoded, picture)
                if pixels is None:
                    pixels = await run(self._alone, self._large.pixels, picture)
            if pixels is None:
                raise LockstepError(_BEYOND, DATA)
            prediction = await run(
                self._workers,
                self._classifier.predict_pixels,
                pixels,
                TOP,
                0,
                "evidence" in wanted,
            )
        except LockstepError as error:
            if error.code != DATA:
                raise
            prediction, pixels = Prediction(0, error=str(error)), None
        shown = await asyncio.to_thread(self._shown, wanted, prediction, pixels)
        return {**prediction.record(), "source": name, **shown}

    def _decoded(self, picture: bytes) -> Pixels | None:
        decoder = self._idle.pop()  # There are as many as threads.
        try:
            return decoder.pixels(picture)
        finally:
            self._idle.append(decoder)

    async def _pictures(self, request: Request) -> list[tuple[str, bytes]]:
        """Return the name and the content of each file in a request. Raises: HTTPException."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type.startswith("image/") or media_type == "application/octet-stream":
            pictures = [("picture", b"".join([chunk async for chunk in self._body(request)]))]
        elif media_type == "multipart/form-data":
            pictures = await self._files(request)
        elif media_type == "application/json":
            pictures = [("picture", await self._in_json(request))]
        else:
            raise HTTPException(415, f"Content-Type is {media_type or 'missing'}: {_TYPE}")
        if not pictures:
            raise HTTPException(
                422, f"the form has no file in the field image or file, or not its end: {_TYPE}"
            )
        return pictures

    async def _files(self, request: Request) -> list[tuple[str, bytes]]:
        parser = MultiPartParser(
            request.headers, self._body(request), max_files=FILE_LIMIT, max_fields=FILE_LIMIT
        )
        # in memory, which is counted, and not in a file on the disk
        parser.spool_max_size = BODY_LIMIT
        try:
            form = await parser.parse()
        except (MultiPartException, UnicodeError) as error:
            raise HTTPException(
                400, f"the form cannot be read ({str(error).rstrip('.')}): {_TYPE}"
            ) from None
        try:
            files = [
                file
                for field, file in form.multi_items()
                if field in _FIELDS and isinstance(file, UploadFile)
            ]
            return [(printable(file.filename or "picture"), await file.read()) for file in files]
        finally:
            await form.close()

    async def _in_json(self, request: Request) -> bytes:
        """Return the picture of a JSON object, in base64 or as a data: URL. Raises:
        HTTPException.
        """
        body = b"".join([chunk async for chunk in self._body(request)])
        try:
            sent = json.loads(body)
            (text,) = (sent[field] for field in _FIELDS if field in sent)
            if text.startswith("data:"):
                text = text.partition(";base64,")[2]
            # Programs such as base64 break the lines of what they write.
            return base64.b64decode("".join(text.split()), validate=True)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise HTTPException(
                400, f"the JSON has no picture in base64 in its field image: {_TYPE}"
            ) from None

    async def _body(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body of a request. Raises: HTTPException if it is too large, by its header or
        its bytes.

        If all requests together need too much memory, the largest one is ended, so that small ones
        have room.
        """
        too_large = HTTPException(
            413, f"a request has at most {size(BODY_LIMIT)}: send a smaller picture, or fewer"
        )
        if int(request.headers.get("content-length", 0)) > BODY_LIMIT:
            raise too_large
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received > BODY_LIMIT:
                raise too_large
            if request in self._held:
                self._held[request] = received
            while sum(self._held.values()) > MEMORY_LIMIT:
                largest = max(self._held, key=self._held.__getitem__)
                del self._held[largest]
                largest.state.timeout.reschedule(0)
            if request not in self._held:
                raise _busy(_LARGEST)
            yield chunk

    def _shown(self, wanted: list[str], prediction: Prediction, pixels: Pixels | None) -> Record:
        """Return the URLs of PNGs of what preprocessing leaves of an image: all, or its centre."""
        shown: Record = dict.fromkeys(wanted)
        if pixels is None:
            return shown
        height, width = self._seen_px
        top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2

        def url_of(picture: Pixels) -> str:
            return address(picture[top : top + height, left : left + width], "PNG")

        if "input" in shown:
            shown["input"] = url_of(pixels)
        if "evidence" in shown and prediction.evidence is not None:
            lights = spotlights(prediction, pixels)
            lit = {label: url_of(picture) for label, picture in lights.items()}
            shown["evidence"] = lit[str(prediction.label)] if prediction.labels is None else lit
        return shown


class _Connection(H11Protocol):
    """A connection that ends if a request does not arrive, or if an answer is not read, in time.

    If there are too many, the one ends that has waited longest for the rest of a request, or for
    the next one.
    """

    _end: asyncio.TimerHandle  # when this connection ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._end = self.loop.call_later(HEAD_LIMIT_S, transport.abort)
        others = self.connections - {self}
        waiting = [other for other in others if isinstance(other, _Connection) and other._waits]
        if waiting and len(self.connections) >= CONNECTION_LIMIT:
            oldest = min(waiting, key=lambda connection: connection._since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def handle_events(self) -> None:
        before = self.cycle
        # uvicorn would also count requests that still end, although their connection has ended.
        self.limit_concurrency = (
            CONNECTION_LIMIT if len(self.connections) >= CONNECTION_LIMIT else None
        )
        super().handle_events()
        if self.cycle is not before:  # The head of a request has arrived.
            self._end_after(REQUEST_LIMIT_S + HEAD_LIMIT_S)

    def on_response_complete(self) -> None:
        self._end_after(HEAD_LIMIT_S)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        """Whether a part of a request is missing, or the client has its answer."""
        return self.cycle is None or self.cycle.more_body or self.cycle.response_complete

    def _end_after(self, seconds: float) -> None:
        self._end.cancel()
        self._since = self.loop.time()
        self._end = self.loop.call_later(seconds, self.transport.abort)


def _busy(cause: str) -> HTTPException:
    return HTTPException(503, f"{cause}: send it again in a few seconds", {"Retry-After": "2"})


async def _drain(request: Request) -> None:
    """Read the rest of a request that is refused, up to a bound.

    The system resets a connection that is closed with unread bytes, and then the client loses the
    answer. A client that expects 100 Continue has not sent its body.
    """
    received = 0
    if "expect" in request.headers:
        return
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):  # if all is read
        async with asyncio.timeout(HEAD_LIMIT_S):
            async for chunk in request.stream():
                received += len(chunk)
                if received > DRAIN_LIMIT:
                    return


async def _refused(request: Request, error: Exception) -> Response:
    """Return the answer that says what is wrong. After an error that is none of these, uvicorn logs
    its traceback.
    """
    match error:
        case HTTPException():
            if error.status_code < 500:
                await _drain(request)
            return JSONResponse(
                {"error": _PATHS if error.status_code in (404, 405) else error.detail},
                error.status_code,
                error.headers,
            )
        case LockstepError():
            return await _refused(request, _busy(str(error)))
        case ClientDisconnect():
            return Response(status_code=400)  # which nobody reads
    return JSONResponse({"error": "an error of the server: its terminal shows it"}, 500)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host name or address. Raises: LockstepError."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(
            address[:2], family=family, backlog=CONNECTION_LIMIT, dualstack_ipv6=both
        )
    except (OSError, UnicodeError) as error:  # that of a name that no host can have
        cause = str(getattr(error, "strerror", "no such name")).partition(" (")[0]
        raise LockstepError(
            f"cannot listen at --host {host} --port {port}: {cause}: choose another host or port "
            f"(0 takes a free port)",
            ENVIRONMENT,
        ) from None


def network_address() -> str:
    """Return this machine's address on its network, or its name if it has no way out. Nothing is
    sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            # an address that nobody has: this only chooses the way there
            way.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(way.getsockname()[0])


def url(host: str, listening: socket.socket) -> str:
    """Return the address of the page."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def server_of(application: Starlette) -> uvicorn.Server:
    """Return the server of an application, which is not started."""
    # It logs what it raises, and the answer says it.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            headers=_HEADERS,
            timeout_graceful_shutdown=END_LIMIT_S,
        )
    )


def serve_until_signal(server: uvicorn.Server, listening: socket.socket) -> int | None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP, and return which it was; None if the server ended by
    itself.

    Requests that have arrived by then are answered, for some seconds.
    """
    request = StopRequest()

    def end(number: int, frame: FrameType | None) -> None:
        request.remember(number, frame)
        server.should_exit = True

    # uvicorn would log a traceback for each request that has not arrived when the server ends.
    logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
    with handled_by(end):  # uvicorn raises SIGINT and SIGTERM again at its end.
        server.run(sockets=[listening])
    return request.received
