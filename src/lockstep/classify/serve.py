"""The web application: the page, POST /predict and GET /health. Whatever it refuses, it refuses with a sentence."""

import asyncio
import base64
import contextlib
import io
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep import numerics
from lockstep.classify.predict import Classifier, Prediction
from lockstep.data.decode import stored_pixels
from lockstep.errors import DATA, LockstepError, printable
from lockstep.words import size

BODY_LIMIT = 32_000_000  # bytes of a request. A phone's photo has up to 20 MB.
MEMORY_LIMIT = 200_000_000  # bytes of all requests that are being answered
FILE_LIMIT = 16  # files of a request
REQUEST_LIMIT_S = 60.0  # from the head of a request to its answer
TOP = 5  # classes in an answer
PIXEL_LIMIT = 55_000_000  # of a picture, as stored. A phone's photo has up to 50 million.
_SMALL = 2_000_000  # pixels of a picture that is decoded beside others
_WORKERS = 4  # threads that decode small pictures and classify, at most

Pixels: TypeAlias = NDArray[np.uint8]
Answer: TypeAlias = tuple[Prediction, Pixels | None]  # None if the picture cannot be read

_TYPE = "send a picture as the body (Content-Type image/jpeg, for example), or files in the field image of a form"
_PATHS = "this server answers GET /, GET /health and POST /predict"
# A page that the network's user opens may load nothing from elsewhere, and no other page may frame it.
_POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def application(classifier: Classifier, name: str, host: str) -> Starlette:
    """Return the application that serves `classifier` under `name`, at the host name or address `host`.

    Raises: LockstepError if it cannot classify pictures.
    """
    if problem := next(classifier.predict(Image.new("RGB", (64, 64)))).error:
        raise LockstepError(f"{classifier.origin} cannot classify pictures: {problem}", DATA)
    service = _Service(classifier, name)
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/health", service.health),
            Route("/predict", service.predict, methods=["POST"]),
        ],
        middleware=[Middleware(_OwnPagesOnly, host=host)],
        exception_handlers=dict.fromkeys((HTTPException, LockstepError, ClientDisconnect, Exception), _refused),
        lifespan=service.running,
    )


class _Service:
    """The answers to requests: the pictures of all, from the bytes of a file to a prediction, in a bounded memory.

    A decoded picture takes 1 to 16 bytes a pixel, however small its file is. So large ones are decoded one at a time,
    in a thread of their own, and small ones do not wait for them. At most `PIXEL_LIMIT` + `_WORKERS` * `_SMALL` pixels
    are decoded at a time.
    """

    def __init__(self, classifier: Classifier, name: str) -> None:
        self._classifier = classifier
        self._held = self._unanswered = 0  # bytes and pictures of requests that are being answered
        self._workers = numerics.pool(min(_WORKERS, numerics.workers()), "classify")
        self._large = ThreadPoolExecutor(1, "decode")
        _, *self._seen_px = classifier.recipe.augmentation.shape(*classifier.image_shape)
        environment = Environment(loader=PackageLoader("lockstep.classify"), autoescape=True, undefined=StrictUndefined)
        environment.filters["printable"] = printable
        self._template = environment.get_template("page.html.jinja")
        self._facts: dict[str, Any] = {
            "name": name, "weights": classifier.origin.name, "classes": classifier.classes,
            "image_shape": classifier.image_shape,
        }  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """End the threads after the context."""
        try:
            yield
        finally:
            for pool in (self._workers, self._large):
                pool.shutdown(wait=False, cancel_futures=True)

    async def page(self, request: Request) -> Response:
        """Answer GET /."""
        nonce = secrets.token_urlsafe(16)
        text = self._template.render(nonce=nonce, seen_px=self._seen_px, body_limit=BODY_LIMIT, **self._facts)
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY.format(nonce)})

    async def health(self, request: Request) -> Response:
        """Answer GET /health: what is served, and how many pictures wait for an answer."""
        return JSONResponse({"status": "ok", **self._facts, "unanswered": self._unanswered})

    async def predict(self, request: Request) -> Response:
        """Answer POST /predict. With ?input=png each prediction also has the picture as the network sees it."""
        request.state.held = count = 0
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                pictures = await self._pictures(request)
                self._unanswered += (count := len(pictures))
                answers = await asyncio.gather(*(self._answer(picture) for _, picture in pictures))
        except TimeoutError:
            problem = f"no answer within {REQUEST_LIMIT_S:g} s: send fewer pictures at a time"
            raise HTTPException(504, problem, {"Connection": "close"}) from None
        finally:
            self._held -= request.state.held
            self._unanswered -= count
        records = []
        for (name, _), (prediction, pixels) in zip(pictures, answers, strict=True):
            records.append({**prediction.record(), "source": name})
            if request.query_params.get("input") == "png":
                records[-1]["input"] = None if pixels is None else await asyncio.to_thread(self._png, pixels)
        errors = [f"{record['source']}: {record['error']}" for record in records if record["error"] is not None]
        if len(errors) == len(records):
            return JSONResponse({"error": "; ".join(errors), "predictions": records}, 422)
        return JSONResponse({"predictions": records})

    async def _answer(self, picture: bytes) -> Answer:
        run = asyncio.get_running_loop().run_in_executor
        try:
            answer = await run(self._workers, self._small_answer, picture)
            if answer is None:
                pixels = await run(self._large, self._classifier.pixels, picture)
                answer = await run(self._workers, self._classified, pixels)
            return answer
        except LockstepError as error:
            if error.code != DATA:
                raise
            return Prediction(0, error=str(error)), None

    def _small_answer(self, picture: bytes) -> Answer | None:
        """Return the answer for a picture, or None if it is a large one."""
        large = stored_pixels(picture, PIXEL_LIMIT) > _SMALL
        return None if large else self._classified(self._classifier.pixels(picture))

    def _classified(self, pixels: Pixels) -> Answer:
        return self._classifier.predict_pixels(pixels, TOP), pixels

    async def _pictures(self, request: Request) -> list[tuple[str, bytes]]:
        """Return the name and the content of each file in a request. Raises: HTTPException."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith("image/") or kind == "application/octet-stream":
            pictures = [("picture", b"".join([chunk async for chunk in self._body(request)]))]
        elif kind == "multipart/form-data":
            pictures = await self._files(request)
        else:
            raise HTTPException(415, f"Content-Type is {kind or 'missing'}: {_TYPE}")
        if not pictures:
            raise HTTPException(422, f"the form has no file in the field image: {_TYPE}")
        return pictures

    async def _files(self, request: Request) -> list[tuple[str, bytes]]:
        parser = MultiPartParser(request.headers, self._body(request), max_files=FILE_LIMIT, max_fields=FILE_LIMIT)
        parser.spool_max_size = BODY_LIMIT  # in memory, which is counted, and not in a file on the disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise HTTPException(400, f"the form cannot be read ({error.message.rstrip('.')}): {_TYPE}") from None
        try:
            files = [file for file in form.getlist("image") if isinstance(file, UploadFile)]
            return [(file.filename or "picture", await file.read()) for file in files]
        finally:
            await form.close()

    async def _body(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Yield the body of a request. Raises: HTTPException if it is too large, by its header or its bytes."""
        too_large = HTTPException(413, f"a request has at most {size(BODY_LIMIT)}: send a smaller picture, or fewer")
        if int(request.headers.get("content-length", 0)) > BODY_LIMIT:
            raise too_large
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received > BODY_LIMIT:
                raise too_large
            if self._held + len(chunk) > MEMORY_LIMIT:
                raise _busy(f"other requests hold {size(self._held)}")
            self._held += len(chunk)
            request.state.held += len(chunk)
            yield chunk

    def _png(self, pixels: Pixels) -> str:
        """Return the URL of a PNG of what preprocessing leaves of an image: all, or its centre."""
        height, width = self._seen_px
        top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
        seen, file = pixels[top : top + height, left : left + width], io.BytesIO()
        Image.fromarray(seen[..., 0] if seen.shape[2] == 1 else seen).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


class _OwnPagesOnly:
    """Refuses requests of other sites' pages: those with another origin, and those by a name that is not ours.

    A page of another site can send a request here, and by a name of its own that leads to this machine (DNS rebinding)
    it could read the answer. It has no such way with an address.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._names = app, {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        app = self._app if problem is None else JSONResponse({"error": problem}, 403)
        await app(scope, receive, send)

    def _problem(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_own(host):
            return f"this server is not {host!r}: use its address, localhost, or start it with --host and this name"
        if origin is not None and origin != f"http://{host}":
            return f"a page of {origin} may not use this server"
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or bool(ip_address(name))
        except ValueError:
            return False


def _busy(cause: str) -> HTTPException:
    return HTTPException(503, f"{cause}: send it again in a few seconds", {"Retry-After": "2"})


async def _refused(request: Request, error: Exception) -> Response:
    """Return the answer that says what is wrong. After an error that is none of these, uvicorn logs its traceback."""
    match error:
        case HTTPException(status_code=404 | 405):
            return JSONResponse({"error": _PATHS}, error.status_code, error.headers)
        case HTTPException():
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        case LockstepError():
            return await _refused(request, _busy(str(error)))
        case ClientDisconnect():
            return Response(status_code=400)  # which nobody reads
    return JSONResponse({"error": "an error of the server: its terminal shows it"}, 500)
