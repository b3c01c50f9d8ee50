"""Downloads from a real server on this machine, and every way they fail: with one error, and no
file left but what came of one.
"""

import gzip
import hashlib
import resource
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.conftest import OFFLINE
from tests.helpers import lockstep_error
from tests.serving import TOY, Server, archive, certificate, listing, packed, refused, toy

from lockstep.data import catalog, fetch
from lockstep.data.catalog import CATALOG, Archive, DatasetFiles
from lockstep.errors import DATA, ENVIRONMENT
from lockstep.jobs import weights
from lockstep.messages import handled, logger
from lockstep.text import size


@pytest.fixture(autouse=True)
def _outside(monkeypatch):
    """Give each test short waits, and no network, no mirror and no data folder."""
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fetch, "_RETRIES", 0)
    monkeypatch.setattr(fetch, "_TIMEOUT_S", 0.5)


@pytest.fixture
def server():
    server = Server()
    server.files["toy.tar.gz"] = TOY
    yield server
    server.stop()


@pytest.fixture
def destination(tmp_path):
    """The folder of the dataset, which does not exist yet, in an empty folder."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data/toy"


def test_an_archive_is_fetched_once_verified_and_unpacked(server, destination, caplog):
    source = toy(TOY, server.url)
    destination.mkdir()  # an empty folder holds nothing to lose
    assert fetch.fetch(source, destination)
    assert listing(destination.parent) == ["toy"]
    assert listing(destination) == ["toy-files"]
    assert (destination / "toy-files/b.bin").read_bytes() == bytes(range(256)) * 2000
    found = [destination / "toy-files/a.bin", destination / "toy-files/b.bin"]
    assert catalog.searched(source, destination.parent) == (found, "")
    assert (
        destination / "toy-files/a.bin"
    ).stat().st_mode & 0o044  # readable by everybody, for shared folders
    assert not fetch.fetch(source, destination)
    assert server.requests == ["toy.tar.gz"]
    assert caplog.messages == [
        f"fetching toy.tar.gz ({size(len(TOY))}) from {server.url}toy.tar.gz"
    ]


def test_a_gz_file_is_kept_even_if_declared_as_an_encoding(server, destination):
    bodies = {f"{name}.gz": gzip.compress(name.encode() * 1000) for name in ("one", "two")}
    for name, body in bodies.items():
        server.files[name] = lambda handler, body=body: handler.send(body, Content_Encoding="gzip")
    archives = tuple(archive(name, body, server.url) for name, body in bodies.items())
    source = DatasetFiles("toy", (("one.gz",), ("two.gz",)), ("toy",), archives)
    assert fetch.fetch(source, destination)
    assert {path.name: path.read_bytes() for path in destination.glob("*.gz")} == bodies
    assert (destination / "one.gz").stat().st_mode & 0o044


def test_a_server_may_compress_for_those_who_ask(server, tmp_path):
    body = b"weights" * 100

    def answer(handler):
        asked = "gzip" in handler.headers["Accept-Encoding"]
        handler.send(gzip.compress(body) if asked else body)

    server.files["w.pt"] = answer
    fetch.fetch_file(archive("w.pt", body, server.url), tmp_path / "w.pt")
    assert (tmp_path / "w.pt").read_bytes() == body

    def unstated(handler):
        handler.send_response(200)
        handler.end_headers()

    server.files["x.pt"] = unstated
    with lockstep_error("the server states no size, and 8.6 GB is the most"):
        fetch.fetch_file(Archive("x.pt", (server.url,), 0, "0" * 64), tmp_path / "x.pt")


def test_https_comes_first_and_every_file_has_its_sha256():
    for one in (each for source in CATALOG.values() for each in source.archives):
        assert [base.startswith("https://") for base in one.bases] in (
            [True] * len(one.bases),
            [True, True, False],
        )
        assert len(bytes.fromhex(one.sha256)) == 32


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, "404 Client Error"),
        (lambda handler: handler.send(TOY[:3000], len(TOY)), "IncompleteRead"),
        (TOY[:2000] + b"?" + TOY[2001:], "SHA256 hash of downloaded file"),
        (b"<html>Log in to use this network</html>", "SHA256 hash of downloaded file"),
        (lambda handler: handler.connection.close(), "Connection aborted"),
        (lambda handler: handler.server.silent(handler), "timed out"),
        (lambda handler: handler.server.half(TOY)(handler), "timed out"),
        (lambda handler: handler.send(b"", status=302, Location="toy.tar.gz"), "30 redirects"),
    ],
    ids=["404", "truncated", "corrupt", "portal", "cut", "silent", "silent later", "in a circle"],
)
def test_a_bad_answer_is_reported(server, destination, answer, words):
    server.files["toy.tar.gz"] = answer
    refused(toy(TOY, server.url), destination, DATA, f"{server.url}toy.tar.gz: ", words)


def test_an_address_is_tried_again(server, destination, monkeypatch):
    """A try continues the file of the try before it. Status 416 makes it begin again."""
    monkeypatch.setattr(fetch, "_RETRIES", 4)
    monkeypatch.setattr(fetch, "_CHUNK_BYTES", 20_000)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    half = server.half(TOY)
    answers = iter([503, half, half, 416, TOY])

    def answer(handler):
        server.files["later"] = next(answers)
        handler.path = "later"
        handler.do_GET()

    server.files["toy.tar.gz"] = answer
    assert fetch.fetch(toy(TOY, server.url), destination)
    assert server.begins == [0, 40_000, 0]
    assert listing(destination.parent) == ["toy"]


def test_mirrors_are_tried_in_order_and_each_failure_is_reported(server, destination, monkeypatch):
    server.files |= {"first/toy.tar.gz": 500, "second/toy.tar.gz": TOY[:-1], "own/toy.tar.gz": 404}
    bases = [
        *(f"{server.url}{name}/" for name in ("first", "second")),
        "http://127.0.0.1:9/",
        "http://[half/",
    ]
    monkeypatch.setenv("LOCKSTEP_MIRROR", f"{server.url}own")
    words = (
        "own/toy.tar.gz: 404 Client Error",
        "500",
        "hash of downloaded file",
        "refused",
        "Failed to parse",
    )
    refused(toy(TOY, *bases), destination, DATA, *words)
    assert server.requests == [f"{folder}/toy.tar.gz" for folder in ("own", "first", "second")]


def test_what_is_not_the_dataset_is_refused(server, destination):
    server.files["toy.tar.gz"] = body = packed(("toy-files/a.bin", b"a"))
    refused(toy(body, server.url), destination, DATA, "has no file b.bin")
    destination.mkdir()
    (destination / "thesis.txt").write_text("years of work")
    with lockstep_error("is not empty, and does not have all files of dataset toy: move it away"):
        fetch.fetch(toy(TOY, server.url), destination)
    assert len(server.requests) == 1


def test_a_begun_file_starts_again_if_the_server_sends_all(server, destination, monkeypatch):
    monkeypatch.setattr(fetch, "_CHUNK_BYTES", 1000)
    server.files["toy.tar.gz"] = lambda handler: handler.send(TOY[:3500], len(TOY))
    refused(toy(TOY, server.url), destination, DATA, "IncompleteRead", "The next try continues")
    asked = []

    def whole(handler):
        asked.append(handler.headers["Range"])
        del handler.headers["Range"]
        handler.send(TOY)  # with status 200

    server.files["toy.tar.gz"] = whole
    assert fetch.fetch(toy(TOY, server.url), destination)
    assert asked == ["bytes=3000-"]
    assert listing(destination.parent) == ["toy"]


@pytest.mark.parametrize("known", [True, False], ids=["the catalog", "the server"])
def test_more_bytes_than_stated_are_refused(server, destination, known):
    """The catalog states the size, or a header that the body in chunks does not keep to."""
    body = bytes(1000)
    one = archive("w.pt", body, server.url)

    def more(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "9999" if known else "1000")
        if not known:
            handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(bytes(9999) if known else b"270f\r\n" + bytes(9999) + b"\r\n0\r\n\r\n")

    server.files["w.pt"] = more
    with lockstep_error(f"the server sends more than {size(1000)}"):
        fetch.fetch_file(one if known else one._replace(size_bytes=0), destination)
    assert listing(destination.parent) == []


def test_a_file_larger_than_any_is_refused_by_its_stated_size(server, destination):
    server.files["w.pt"] = lambda handler: handler.send(b"", (1 << 33) + 1)
    with lockstep_error("the server states 8.6 GB, and 8.6 GB is the most"):
        fetch.fetch_file(Archive("w.pt", (server.url,), 0, "0" * 64), destination)


# ---- the connection


@pytest.fixture
def encrypted(tmp_path, monkeypatch):
    """A server that encrypts, at `localhost`. Its certificate is trusted."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate(tmp_path / "host.pem", "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "host.pem"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")
    server = Server(tmp_path / "host.pem")
    server.url = f"https://localhost:{server.server_port}/"
    yield server
    server.stop()


def to(address):
    """An answer that redirects."""
    return lambda handler: handler.send(b"see there", status=302, Location=address)


@pytest.mark.parametrize("scheme", ["http://", "HTTP://", " http://"])
@pytest.mark.parametrize("detour", [False, True])
def test_a_redirect_from_https_to_http_is_refused(
    server, encrypted, destination, monkeypatch, scheme, detour
):
    """Nothing is asked of the address, and nothing is tried again."""
    monkeypatch.setattr(fetch, "_RETRIES", 2)
    plain = server.url.replace("http://", scheme) + "toy.tar.gz"
    encrypted.files |= {"toy.tar.gz": to("/on" if detour else plain), "on": to(plain)}
    asked = ["toy.tar.gz", "on"][: 1 + detour]
    words = (f"it is redirected to {plain.strip()}", "which is not encrypted. Or download")
    refused(toy(TOY, encrypted.url), destination, DATA, *words)
    assert (encrypted.requests, server.requests) == (asked, [])
    sha256 = hashlib.sha256(TOY).hexdigest()
    encrypted.files["w.pt"] = encrypted.files["toy.tar.gz"]
    with lockstep_error("which is not encrypted"):
        weights.downloaded(f"{encrypted.url}w.pt#sha256={sha256}")
    assert server.requests == []


@pytest.mark.parametrize("form", ["relative", "without a scheme", "https"])
def test_other_redirects_are_followed(server, encrypted, destination, form):
    address = {"relative": "on", "without a scheme": encrypted.url[6:] + "on"}
    encrypted.files |= {"toy.tar.gz": to(address.get(form, encrypted.url + "on")), "on": TOY}
    server.files |= {"toy.tar.gz": to(server.url + "on"), "on": to(encrypted.url + "toy.tar.gz")}
    assert fetch.fetch(toy(TOY, server.url), destination)
    assert (server.requests, encrypted.requests) == (["toy.tar.gz", "on"], ["toy.tar.gz", "on"])


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (
            "https://no.example/",
            "no connection: Failed to resolve 'no.example' ([Errno -3] Tempora",
        ),
        ("http://127.0.0.1:9/", "no connection: Failed to establish a new connection"),
        (
            "https://by.proxy/",
            "no connection: ('Unable to connect to proxy', ",
        ),
    ],
    ids=["name", "port", "proxy"],
)
def test_an_address_without_connection_is_tried_once(server, destination, monkeypatch, base, words):
    resolve = socket.getaddrinfo

    def getaddrinfo(host, *args, **options):
        if host == "no.example":
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return resolve(host, *args, **options)

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,no.example")
    monkeypatch.setattr(fetch, "_RETRIES", 2)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: pytest.fail("it is tried again"))
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    words = f"{base}toy.tar.gz: {words}"
    remedy = "Connect this machine to the network (https_proxy names a proxy, and SSL_CERT_FILE the"
    refused(toy(TOY, base), destination, DATA, words, remedy)


def test_a_certificate_that_is_not_trusted_is_named(encrypted, destination, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    words = r"SSL_CERT_FILE .*toy.tar.gz: no connection: \[SSL: CERTIFICATE_VERIFY_FAILED\]"
    with lockstep_error(words):
        fetch.fetch(toy(TOY, encrypted.url), destination)
    assert encrypted.requests == []


def test_a_download_is_told_while_other_messages_wait(server, destination):
    """Training shows its messages after the block at its start, which a download would delay."""
    shown, later = [], []
    with handled(shown.append), handled(later.append, later=True):
        logger.warning("a message")
        assert fetch.fetch(toy(TOY, server.url), destination)
    assert later == ["a message"]
    assert [text.partition(" (")[0] for text in shown] == ["fetching toy.tar.gz"]


# ---- the destination


@pytest.mark.parametrize("limit", [200, len(TOY) + 1000], ids=["download", "unpacking"])
def test_a_full_disk_is_reported_and_nothing_is_left(server, destination, limit):
    """A limit on file sizes makes the same calls fail. The second limit is smaller than the larger
    unpacked file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        words = f"dataset toy: no room for {destination} (File too large): it needs"
        refused(toy(TOY, server.url), destination, ENVIRONMENT, words)
        if limit < len(TOY):
            with lockstep_error(f"^weights toy.tar.gz: no room for {destination}/w "):
                fetch.fetch_file(toy(TOY, server.url).archives[0], destination / "w")
            assert listing(destination) == []
            destination.rmdir()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {*server.requests} == {"toy.tar.gz"}


def test_one_downloads_and_others_wait(server, destination, caplog, monkeypatch):
    """Threads stand for programs: the lock of each open file is its own. The holder removes it
    while others wait.
    """
    monkeypatch.setattr(fetch, "_TIMEOUT_S", 60)
    server.files["toy.tar.gz"] = server.half(TOY)
    (destination.parent / ".toy-partial").mkdir()  # of a program that was killed
    (destination.parent / ".toy-partial/left").touch()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(fetch.fetch, toy(TOY, server.url), destination)
        assert server.halfway.wait(60)
        assert listing(destination.parent)[:2] == [".toy-lock", ".toy-partial"]
        others = [pool.submit(fetch.fetch, toy(TOY, server.url), destination) for _ in range(7)]
        while caplog.text.count("another program is downloading dataset toy: waiting for it") < 7:
            time.sleep(0.01)
        assert all(record.progress for record in caplog.records)  # is shown at once
        server.go_on.set()
        assert first.result()
        assert not any(other.result() for other in others)
    assert server.requests == ["toy.tar.gz"]
    assert listing(destination.parent) == ["toy"]
    assert listing(destination) == ["toy-files"]


def test_first_use_downloads_into_the_cache_and_only_once(server, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(CATALOG, "toy", toy(TOY, server.url))
    for _ in range(2):
        fetch.ensure("toy", None)
    assert caplog.messages[1:] == [f"dataset toy is in {tmp_path}/cache/lockstep/toy"]
    assert listing(tmp_path / "cache/lockstep") == ["toy"]
    assert server.requests == ["toy.tar.gz"]
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "own"))
    fetch.ensure("toy", None)  # it is in the cache
    assert server.requests == ["toy.tar.gz"]
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    fetch.ensure("toy", None)
    assert listing(tmp_path / "own/toy") == ["toy-files"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCKSTEP_DATA", "~/unread")  # as in a .env file, which no shell expands
    fetch.ensure("toy", None)
    assert listing(tmp_path / "unread/toy") == ["toy-files"]


def test_first_use_downloads_nothing_if_the_user_gives_a_folder(server, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOG, "toy", toy(TOY, server.url))
    with lockstep_error(f"lockstep data fetch toy --data {tmp_path}"):
        fetch.ensure("toy", tmp_path)
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    (tmp_path / "a.bin").write_text("by hand, and one file short")
    with lockstep_error(r"has no file b\.bin\. Give .*, or download it: lockstep data fetch toy"):
        fetch.ensure("toy", None)
    fetch.ensure("digits", None)
    fetch.ensure("my own", None)
    assert server.requests == []
