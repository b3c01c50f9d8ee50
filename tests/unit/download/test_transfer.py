"""Downloads from a real server on this machine, and every way they fail: with one error, and no file left."""

import contextlib
import io
import sys
import tarfile

import pytest
from tests.conftest import OFFLINE
from tests.serving import TOY, archive, listing, packed, refused, toy

from lockstep.data import locate
from lockstep.data.catalog import SOURCES, Source
from lockstep.data.download import fetch, manifest, transfer
from lockstep.errors import DATA, LockstepError
from lockstep.words import size


def test_an_archive_is_fetched_verified_unpacked_and_not_fetched_again(server, destination, caplog):
    source = toy(TOY, server.url)
    assert fetch.fetch(source, destination)
    assert listing(destination.parent) == ["toy"]
    assert listing(destination) == [manifest.NAME, "toy-files"]
    assert (destination / "toy-files/b.bin").read_bytes() == bytes(range(256)) * 2000
    assert manifest.problem(destination) is None
    assert locate.present(source, destination.parent) == [
        destination / "toy-files/a.bin",
        destination / "toy-files/b.bin",
    ]
    assert fetch.located(source, destination.parent) == (destination, True)
    assert (destination / "toy-files/a.bin").stat().st_mode & 0o044  # readable by everybody, for shared folders
    assert not fetch.fetch(source, destination)
    assert server.requests == ["toy.tar.gz"]
    assert caplog.messages[0] == f"fetching toy.tar.gz ({size(len(TOY))}) from {server.url}toy.tar.gz"
    assert caplog.messages[1].startswith("toy.tar.gz is downloaded and verified after")
    assert caplog.messages[2:] == []


def test_a_gz_file_is_kept_even_if_the_server_declares_it_as_an_encoding(server, destination):
    import gzip

    bodies = {f"{name}.gz": gzip.compress(name.encode() * 1000) for name in ("one", "two")}
    for name, body in bodies.items():
        server.files[name] = lambda handler, body=body: handler.send(body, Content_Encoding="gzip")
    archives = tuple(archive(name, body, server.url) for name, body in bodies.items())
    source = Source("toy", 2, 1, (("one.gz",), ("two.gz",)), ("toy",), archives)
    assert fetch.fetch(source, destination)
    assert {path.name: path.read_bytes() for path in destination.glob("*.gz")} == bodies
    assert (destination / "one.gz").stat().st_mode & 0o044


def test_a_terminal_shows_a_progress_bar(server, destination, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("lockstep.data.progress._SILENT_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    assert fetch.fetch(toy(TOY, server.url), destination)
    assert "\x1b[" in screen.getvalue()
    assert "kB" in screen.getvalue()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, "the server says 404"),
        (500, "the server says 500"),
        (lambda handler: handler.send(TOY[:3000], len(TOY)), "the answer ended too early"),
        (TOY[:2000] + b"?" + TOY[2001:], "wrong checksum"),
        (b"<html>Log in to use this network</html>", "wrong checksum"),
        (lambda handler: handler.connection.close(), "the connection broke"),
    ],
    ids=["404", "500", "truncated", "corrupt", "portal", "cut"],
)
def test_a_bad_answer_is_reported(server, destination, answer, words):
    server.files["toy.tar.gz"] = answer
    refused(toy(TOY, server.url), destination, DATA, f"{server.url}toy.tar.gz: {words}")
    server.files["toy.tar.gz"] = TOY
    assert fetch.fetch(toy(TOY, server.url), destination)  # the next attempt succeeds


def test_an_endless_answer_is_cut_off(server, destination):
    source = toy(TOY, server.url)
    sent = []

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):  # until the client closes the connection
            while True:
                handler.wfile.write(bytes(2**16))
                sent.append(2**16)

    server.files["toy.tar.gz"] = endless
    with pytest.raises(LockstepError, match="wrong checksum"):
        fetch.fetch(source, destination)
    assert listing(destination.parent) == []
    assert sum(sent) < 2 * len(TOY) + 2**24  # sockets and chunks buffer some bytes


def test_a_silent_server_times_out(server, destination):
    server.files["toy.tar.gz"] = server.silent
    refused(toy(TOY, server.url), destination, DATA, "no answer in 0.2 s", timeout_s=0.2)
    server.files["toy.tar.gz"] = server.half(TOY)
    refused(toy(TOY, server.url), destination, DATA, "no answer in 0.2 s", timeout_s=0.2)


def test_unreachable_and_invalid_urls_are_reported(destination, server):
    refused(toy(TOY, "http://127.0.0.1:9/"), destination, DATA, "http://127.0.0.1:9/toy.tar.gz: connection refused")
    refused(
        toy(TOY, "https://files.invalid/"), destination, DATA, "https://files.invalid/toy.tar.gz: the proxy does not"
    )
    for address in ("ftp://127.0.0.1/", "file:///etc/", "nonsense/"):
        refused(toy(TOY, address), destination, DATA, "not an address of http")
    refused(toy(TOY, "http://[half/"), destination, DATA, "not a valid address")
    refused(toy(TOY, f"{server.url}a b/"), destination, DATA, "not a valid address")


def test_an_unknown_host_is_reported(destination, monkeypatch):
    for name in OFFLINE:
        monkeypatch.delenv(name)
    import socket

    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    refused(toy(TOY, "https://files.invalid/"), destination, DATA, "no such host, or no network")


def test_mirrors_are_tried_in_order_and_each_failure_is_reported(server, destination, monkeypatch):
    server.files |= {"first/toy.tar.gz": 500, "second/toy.tar.gz": TOY[:-1], "own/toy.tar.gz": 404}
    bases = [f"{server.url}{name}/" for name in ("first", "second")]
    monkeypatch.setenv("LOCKSTEP_MIRROR", f"{server.url}own")
    refused(toy(TOY, *bases), destination, DATA, "own/toy.tar.gz: the server says 404", "500", "wrong checksum")
    server.requests.clear()
    assert fetch.fetch(toy(TOY, *bases, server.url), destination)
    assert server.requests == [f"{folder}toy.tar.gz" for folder in ("own/", "first/", "second/", "")]


def test_a_mirror_has_a_folder_for_datasets_with_equal_file_names(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_MIRROR", "http://m/x/")
    mnist, fashion = (transfer.addresses(s, s.archives[0])[0] for s in (SOURCES["mnist"], SOURCES["fashion-mnist"]))
    assert mnist == "http://m/x/train-images-idx3-ubyte.gz"
    assert fashion == "http://m/x/fashion-mnist/train-images-idx3-ubyte.gz"


def member(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "bad",
    [
        ("../out.bin", b"x"), ("toy-files/../../out.bin", b"x"), member("toy-files/l", tarfile.SYMTYPE, "/etc/passwd"),
        member("toy-files/l", tarfile.LNKTYPE, "../out.bin"), member("toy-files/d", tarfile.CHRTYPE),
        member("toy-files/d", tarfile.BLKTYPE), member("toy-files/f", tarfile.FIFOTYPE),
    ],
    ids=["..", "inner ..", "symlink", "hard link", "character", "block", "fifo"],
)  # fmt: skip
def test_a_hostile_archive_is_refused(server, destination, tmp_path, bad):
    body = packed(("toy-files/a.bin", b"a"), ("toy-files/b.bin", b"b"), bad)
    server.files["toy.tar.gz"] = body
    refused(toy(body, server.url), destination, DATA, "toy.tar.gz cannot be unpacked")
    assert listing(tmp_path) == ["data"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no archive", "cannot be unpacked"),
        (TOY[:-1000], "cannot be unpacked"),
        (TOY[:-3000] + b"?" * 3000, "toy"),
        (packed(("toy-files/a.bin", b"a")), "has no file b.bin"),
        (packed(("other/a.bin", b"a"), ("other/b.bin", b"b")), "has no file a.bin"),
    ],
    ids=["none", "cut", "garbage", "part", "other"],
)
def test_an_archive_without_the_dataset_is_refused(server, destination, body, words):
    server.files["toy.tar.gz"] = body
    refused(toy(body, server.url), destination, DATA, words)
