"""Downloads from a real server on this machine, and every way they fail: one error, and nothing left behind."""

import contextlib
import io
import sys
import tarfile

import pytest
from tests.conftest import OFFLINE
from tests.serving import TOY, archive, listing, packed, refused, toy

from lockstep.data import locate as sources
from lockstep.data.catalog import SOURCES, Source
from lockstep.data.download import fetch, manifest, transfer
from lockstep.errors import DATA, LockstepError


def test_an_archive_is_fetched_verified_unpacked_and_not_fetched_again(server, place, capsys):
    source = toy(TOY, server.url)
    assert fetch.fetch(source, place)
    assert listing(place.parent) == ["toy"]
    assert listing(place) == [manifest.NAME, "toy-files"]
    assert (place / "toy-files/b.bin").read_bytes() == bytes(range(256)) * 2000
    assert manifest.problem(place) is None
    assert sources.present(source, place.parent) == [place / "toy-files/a.bin", place / "toy-files/b.bin"]
    assert fetch.located(source, place.parent) == (place, True)
    assert (place / "toy-files/a.bin").stat().st_mode & 0o044  # a shared folder is for all to read
    assert not fetch.fetch(source, place)
    assert server.requests == ["toy.tar.gz"]
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == f"lockstep: fetching toy.tar.gz ({transfer.size(len(TOY))}) from {server.url}toy.tar.gz"
    assert lines[1].startswith("lockstep: toy.tar.gz is here and verified after")
    assert lines[2:] == []


def test_single_files_are_kept_as_they_are_even_if_called_an_encoding(server, place):
    import gzip

    bodies = {f"{name}.gz": gzip.compress(name.encode() * 1000) for name in ("one", "two")}
    for name, body in bodies.items():
        server.files[name] = lambda handler, body=body: handler.send(body, Content_Encoding="gzip")
    archives = tuple(archive(name, body, server.url) for name, body in bodies.items())
    source = Source("toy", 2, (("one.gz",), ("two.gz",)), ("toy",), archives)
    assert fetch.fetch(source, place)
    assert {path.name: path.read_bytes() for path in place.glob("*.gz")} == bodies
    assert (place / "one.gz").stat().st_mode & 0o044


def test_a_bar_on_a_terminal(server, place, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert fetch.fetch(toy(TOY, server.url), place)
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
def test_what_a_server_can_do_wrong(server, place, answer, words):
    server.files["toy.tar.gz"] = answer
    refused(toy(TOY, server.url), place, DATA, f"{server.url}toy.tar.gz: {words}")
    server.files["toy.tar.gz"] = TOY
    assert fetch.fetch(toy(TOY, server.url), place)  # a failure is not in the way of the next try


def test_an_answer_without_end_is_cut_off(server, place):
    source = toy(TOY, server.url)
    sent = []

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):  # until the other side has had enough
            while True:
                handler.wfile.write(bytes(2**16))
                sent.append(2**16)

    server.files["toy.tar.gz"] = endless
    with pytest.raises(LockstepError, match="another file"):
        fetch.fetch(source, place)
    assert listing(place.parent) == []
    assert sum(sent) < 2 * len(TOY) + 2**24  # what sockets and chunks hold


def test_a_server_that_never_answers_or_stops_halfway(server, place):
    server.files["toy.tar.gz"] = server.silent
    refused(toy(TOY, server.url), place, DATA, "no answer in 0.2 s", timeout_s=0.2)
    server.files["toy.tar.gz"] = server.half(TOY)
    refused(toy(TOY, server.url), place, DATA, "no answer in 0.2 s", timeout_s=0.2)


def test_no_server_no_network_no_address(place):
    refused(toy(TOY, "http://127.0.0.1:9/"), place, DATA, "http://127.0.0.1:9/toy.tar.gz: connection refused")
    refused(toy(TOY, "https://files.invalid/"), place, DATA, "https://files.invalid/toy.tar.gz: the proxy does not")
    refused(toy(TOY, "ftp://127.0.0.1/"), place, DATA, "not an address of http")
    refused(toy(TOY, "nonsense/"), place, DATA, "not a valid address")


def test_a_host_that_is_not(place, monkeypatch):
    for name in OFFLINE:
        monkeypatch.delenv(name)
    import socket

    def unknown(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    refused(toy(TOY, "https://files.invalid/"), place, DATA, "no such host, or no network")


def test_mirrors_are_tried_in_order_and_each_failure_is_told(server, place, monkeypatch):
    server.files |= {"first/toy.tar.gz": 500, "second/toy.tar.gz": TOY[:-1], "own/toy.tar.gz": 404}
    bases = [f"{server.url}{name}/" for name in ("first", "second")]
    monkeypatch.setenv("LOCKSTEP_MIRROR", f"{server.url}own")
    refused(toy(TOY, *bases), place, DATA, "own/toy.tar.gz: the server says 404", "500", "wrong checksum")
    server.requests.clear()
    assert fetch.fetch(toy(TOY, *bases, server.url), place)
    assert server.requests == [f"{folder}toy.tar.gz" for folder in ("own/", "first/", "second/", "")]


def test_a_mirror_with_sets_of_the_same_file_names(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_MIRROR", "http://m/x/")
    mnist, fashion = (transfer.addresses(s, s.archives[0])[0] for s in (SOURCES["mnist"], SOURCES["fashion-mnist"]))
    assert mnist == "http://m/x/train-images-idx3-ubyte.gz"
    assert fashion == "http://m/x/fashion-mnist/train-images-idx3-ubyte.gz"


def member(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (("../out.bin", b"x"), "'../out.bin' lies outside"),
        (("toy-files/../../out.bin", b"x"), "lies outside"),
        (("/tmp/lockstep-out.bin", b"x"), "lies outside"),
        (member("toy-files/l", tarfile.SYMTYPE, "/etc/passwd"), "is a link"),
        (member("toy-files/l", tarfile.LNKTYPE, "toy-files/a.bin"), "is a link"),
        (member("toy-files/d", tarfile.CHRTYPE), "is a special file"),
        (member("toy-files/d", tarfile.BLKTYPE), "is a special file"),
        (member("toy-files/f", tarfile.FIFOTYPE), "is a special file"),
        (("toy-files/a.bin", b"x"), "is there twice"),
    ],
    ids=["..", "inner ..", "absolute", "symlink", "hard link", "character", "block", "fifo", "twice"],
)
def test_an_archive_is_unpacked_as_if_it_were_hostile(server, place, tmp_path, bad, words):
    body = packed(("toy-files/a.bin", b"a"), ("toy-files/b.bin", b"b"), bad)
    server.files["toy.tar.gz"] = body
    refused(toy(body, server.url), place, DATA, words, "so it is not unpacked")
    assert listing(tmp_path) == ["data"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no archive", "is not a whole tar archive"),
        (TOY[:-1000], "is not a whole tar archive"),
        (TOY[:-3000] + b"?" * 3000, "toy"),
        (packed(("toy-files/a.bin", b"a")), "has no file b.bin"),
        (packed(("other/a.bin", b"a"), ("other/b.bin", b"b")), "has no file a.bin"),
    ],
    ids=["none", "cut", "garbage", "part", "other"],
)
def test_what_is_published_is_not_the_data_set(server, place, body, words):
    server.files["toy.tar.gz"] = body
    refused(toy(body, server.url), place, DATA, words)
