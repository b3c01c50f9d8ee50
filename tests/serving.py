"""A real HTTP server for the tests of downloads, which can fail on demand, and small datasets for
it.
"""

import gzip
import hashlib
import io
import re
import ssl
import struct
import subprocess
import tarfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lockstep.data import fetch
from lockstep.data.catalog import Archive, DatasetFiles
from lockstep.errors import LockstepError

Answer = bytes | int | Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers a path with the server's entry: bytes, a status, or a function that sends the
    answer.
    """

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

    def send(
        self, body: bytes, length: int | None = None, status: int = 200, **headers: str
    ) -> None:
        """Send `body` from the first byte that the client asks for, and state `length`."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(asked[1]) if asked and status == 200 else 0
        length = length or len(body)
        if status == 200:
            self.server.begins.append(begin)
            status = 416 if begin >= length else 206 if begin else 200
        self.send_response(status)
        self.send_header("Content-Length", str(max(0, length - begin)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body[begin:])

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """A server in a thread, which encrypts if it has the file of a certificate and its key.

    files: path -> answer. requests: the requested paths. begins: the first byte of each file that
    was sent.
    """

    def __init__(self, certificate=None):
        super().__init__(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.files: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.begins: list[int] = []
        self.halfway, self.go_on = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def half(self, body: bytes) -> Callable[[Handler], None]:
        """Return an answer that stops halfway, sets `halfway`, and continues after `go_on` is
        set.
        """

        def answer(handler: Handler) -> None:
            try:
                handler.send(body[: len(body) // 2], len(body))
                handler.wfile.flush()
                self.halfway.set()
                self.go_on.wait(60)
                handler.wfile.write(body[len(body) // 2 :])
            except OSError:
                pass  # the client was killed

        return answer

    def silent(self, handler: Handler) -> None:
        """Never answer."""
        self.go_on.wait(60)

    def stop(self) -> None:
        self.go_on.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


def certificate(path, *names):
    """Write a certificate for these names of hosts, and its key, to `path`."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += f" -subj /CN=test -keyout {path} -out {path} -addext subjectAltName="
    words += ",".join(f"DNS:{name}" for name in names)
    subprocess.run(words.split(), check=True, capture_output=True)


def packed(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    """Return a .tar.gz of files, and of members of any other kind."""
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


def toy(body: bytes, *bases: str, name: str = "toy.tar.gz") -> DatasetFiles:
    """Return a dataset of two files in one archive."""
    return DatasetFiles(
        "toy", (("a.bin",), ("b.bin",)), ("toy-files",), (archive(name, body, *bases),)
    )


_NOISE = hashlib.shake_128(b"toy").digest(100_000)  # does not compress
TOY = packed(("toy-files/a.bin", _NOISE), ("toy-files/b.bin", bytes(range(256)) * 2000))


def blank_mnist() -> dict[str, bytes]:
    """Return files with MNIST's names and shapes, all pixels black."""
    files = {}
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = struct.pack(">4I", 2051, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">2I", 2049, count) + bytes(i % 10 for i in range(count))
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images, 1)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels, 1)
    return files


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(source, destination, code, *words):
    """Assert that `fetch` fails with all of `words` and the manual instructions, and leaves no more
    than what it says.
    """
    before = listing(destination.parent)
    with pytest.raises(LockstepError) as caught:
        fetch.fetch(source, destination)
    assert caught.value.code == code
    message = str(caught.value)
    assert "\n" not in message
    for word in (
        *words,
        source.archives[0].name,
        str(destination),
        "Or download",
        "recipe 'digits'",
    ):
        assert word in message
    for name in {*listing(destination.parent)} - {*before}:
        assert f"continues {destination.with_name(name)}." in message
