"""A real HTTP server for the tests of downloads, which fails on demand, and small data sets for it to serve."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lockstep.data.catalog import Archive, Source
from lockstep.data.download import fetch
from lockstep.errors import LockstepError

Answer = bytes | int | Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers with what the server has for a path: bytes, a status, or a function that answers itself."""

    server: "Server"

    def do_GET(self):
        path = self.path.lstrip("/")
        self.server.requests.append(path)
        answer = self.server.files.get(path, 404)
        if callable(answer):
            answer(self)
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            self.send(answer)

    def send(self, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """files: path -> answer. requests: the paths that were asked for."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.halfway, self.go_on = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def half(self, body: bytes) -> Callable[[Handler], None]:
        """An answer that stops halfway, says so, and goes on when told to."""

        def answer(handler: Handler) -> None:
            try:
                handler.send(body[: len(body) // 2], len(body))
                handler.wfile.flush()
                self.halfway.set()
                self.go_on.wait(60)
                handler.wfile.write(body[len(body) // 2 :])
            except OSError:
                pass  # whoever asked was killed

        return answer

    def silent(self, handler: Handler) -> None:
        """An answer that never comes."""
        self.go_on.wait(60)

    def stop(self) -> None:
        self.go_on.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


def packed(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    """A .tar.gz of files, and of members of any other kind."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def archive(name: str, body: bytes, *bases: str) -> Archive:
    return Archive(name, bases, len(body), hashlib.sha256(body).hexdigest())


def toy(body: bytes, *bases: str, name: str = "toy.tar.gz") -> Source:
    """A data set of two files in one archive."""
    return Source("toy", 2, (("a.bin",), ("b.bin",)), ("toy-files",), (archive(name, body, *bases),))


_NOISE = hashlib.shake_128(b"toy").digest(100_000)  # does not compress
TOY = packed(("toy-files/a.bin", _NOISE), ("toy-files/b.bin", bytes(range(256)) * 2000))


def blank_mnist() -> dict[str, bytes]:
    """Files of MNIST's names and shapes, all pixels black."""
    files = {}
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = struct.pack(">4I", 2051, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">2I", 2049, count) + bytes(i % 10 for i in range(count))
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images, 1)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels, 1)
    return files


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(source, place, code, *words, timeout_s=5.0):
    """fetch fails with all of `words` and with what to do, and leaves everything as it was."""
    before = listing(place.parent)
    with pytest.raises(LockstepError) as caught:
        fetch.fetch(source, place, timeout_s)
    assert caught.value.code == code
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, source.archives[0].name, str(place), "By hand", "recipe 'digits'"):
        assert word in message
    assert listing(place.parent) == before
