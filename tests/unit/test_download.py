"""Downloads from a real server on this machine, and every way they fail: one error, and nothing left behind."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading

import pytest
from tests.conftest import OFFLINE
from tests.serving import TOY, Server, archive, packed, toy

from lockstep.data import DATASETS, fetch, manifest, sources, transfer
from lockstep.data.catalog import SOURCES, Source
from lockstep.errors import DATA, ENVIRONMENT, LockstepError


@pytest.fixture(autouse=True)
def _outside(monkeypatch, tmp_path):
    """No network, no mirror and a cache of the test's own."""
    for name, value in {**OFFLINE, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    server = Server()
    server.files["toy.tar.gz"] = TOY
    yield server
    server.stop()


@pytest.fixture
def place(tmp_path):
    """Where the data set goes: a folder in an empty one."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data/toy"


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


PROGRAM = """
import resource, sys
from pathlib import Path
from lockstep.data import fetch
from lockstep.data.catalog import Archive, Source
from lockstep.errors import LockstepError
source, place, limit = eval(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(fetch.fetch(source, place))
except LockstepError as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)
"""


@pytest.fixture
def other():
    """Another program that fetches: other(source, place) -> Popen."""
    started = []

    def start(source, place, limit=0):
        command = [sys.executable, "-c", PROGRAM, repr(source), str(place), str(limit)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


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


@pytest.mark.parametrize("limit", [200, len(TOY) + 1000], ids=["download", "unpacking"])
def test_a_full_disk(server, place, other, limit):
    """A limit on a file's size stands for it: the same calls fail. The second is smaller than the larger file."""
    process = other(toy(TOY, server.url), place, limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ENVIRONMENT, err
    assert f"data set toy: no room for {place} (File too large): it needs" in err
    assert "Traceback" not in err
    assert listing(place.parent) == []
    assert server.requests == ["toy.tar.gz"]


def test_places_that_cannot_be_written(tmp_path, server):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file/toy", tmp_path / "file/deeper/toy"):
        with pytest.raises(LockstepError, match=r"cannot write .*file.*By hand") as caught:
            fetch.fetch(toy(TOY, server.url), place)
        assert caught.value.code == ENVIRONMENT
    assert server.requests == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(place, server):
    place.parent.chmod(0o555)
    try:
        refused(toy(TOY, server.url), place, ENVIRONMENT, "Permission denied")
    finally:
        place.parent.chmod(0o755)


def test_one_program_downloads_and_another_waits(server, place, other):
    server.files["toy.tar.gz"] = server.half(TOY)
    source = toy(TOY, server.url)
    first = other(source, place)
    assert server.halfway.wait(60)
    second = other(source, place)
    assert "another program is downloading data set toy: waiting for it" in second.stderr.readline()
    assert listing(place.parent) == [".toy-lock", f".toy-partial-{first.pid}"]
    server.go_on.set()
    assert first.communicate(timeout=60)[0] == "True\n"
    assert second.communicate(timeout=60)[0] == "False\n"
    assert server.requests == ["toy.tar.gz"]
    assert listing(place.parent) == ["toy"]


def test_whoever_waits_takes_over_from_one_that_fails(server, place, other):
    half = server.half(TOY)
    server.files["toy.tar.gz"] = lambda handler: half(handler) if len(server.requests) == 1 else handler.send(TOY)
    source = toy(TOY, server.url)
    first = other(source, place)
    assert server.halfway.wait(60)
    second = other(source, place)
    assert "waiting" in second.stderr.readline()
    first.send_signal(signal.SIGINT)
    assert second.communicate(timeout=60)[0] == "True\n"
    assert first.communicate(timeout=60)[0] == ""
    assert listing(place.parent) == ["toy"]


def test_what_a_killed_program_left_is_cleaned_up(server, place, other):
    server.files["toy.tar.gz"] = server.half(TOY)
    process = other(toy(TOY, server.url), place)
    assert server.halfway.wait(60)
    process.kill()
    process.wait()
    assert listing(place.parent) == [".toy-lock", f".toy-partial-{process.pid}"]
    server.go_on.set()
    assert fetch.fetch(toy(TOY, server.url), place)
    assert listing(place.parent) == ["toy"]


def test_many_threads_one_download(server, place):
    """The lock's file comes and goes under those that wait for it."""
    threads = [threading.Thread(target=fetch.fetch, args=(toy(TOY, server.url), place)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.requests == ["toy.tar.gz"]
    assert listing(place.parent) == ["toy"]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "manifest"])
def test_a_damaged_download_is_named_and_replaced(server, place, damage):
    source = toy(TOY, server.url)
    fetch.fetch(source, place)
    path = place / (manifest.NAME if damage == "manifest" else "toy-files/b.bin")
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(b"?" + path.read_bytes()[1:])
    else:
        path.write_bytes(path.read_bytes()[:-10])
    assert str(path) in manifest.problem(place)
    assert fetch.located(source, place.parent) == (place, True)
    if damage == "manifest":  # nothing says which files are ours, so none is deleted
        refused(source, place, DATA, "holds toy-files/a.bin")
        return
    server.files["toy.tar.gz"] = 500
    before = {p: p.read_bytes() for p in place.rglob("*.bin")}
    refused(source, place, DATA, "500")
    assert {p: p.read_bytes() for p in place.rglob("*.bin")} == before
    server.files["toy.tar.gz"] = TOY
    assert fetch.fetch(source, place)
    assert manifest.problem(place) is None
    assert listing(place.parent) == ["toy"]


def test_a_folder_that_is_not_ours_is_never_replaced(server, place):
    source = toy(TOY, server.url)
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    refused(source, place, DATA, "was not made by a download, and holds thesis.txt: move it away")
    (place / "thesis.txt").unlink()
    assert fetch.fetch(source, place)  # an empty folder holds nothing to lose
    (place / "toy-files/a.bin").unlink()
    (place / "notes.txt").write_text("mine")
    refused(source, place, DATA, "holds notes.txt")
    assert server.requests == ["toy.tar.gz"]


def test_first_use_downloads_into_the_cache_and_only_once(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SOURCES, "toy", toy(TOY, server.url))
    for _ in range(2):
        fetch.ensure("toy", None)
    assert capsys.readouterr().err.splitlines()[2:] == [f"lockstep: data set toy is in {tmp_path}/cache/lockstep/toy"]
    assert listing(tmp_path / "cache/lockstep") == ["toy"]
    assert server.requests == ["toy.tar.gz"]
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "own"))
    fetch.ensure("toy", None)  # it is in the cache
    assert server.requests == ["toy.tar.gz"]
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    fetch.ensure("toy", None)
    assert listing(tmp_path / "own/toy") == [manifest.NAME, "toy-files"]


def test_first_use_downloads_nothing_where_the_user_says_where(server, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "toy", toy(TOY, server.url))
    with pytest.raises(LockstepError, match=f"lockstep data fetch toy --data {tmp_path}"):
        fetch.ensure("toy", tmp_path)
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    (tmp_path / "a.bin").write_text("by hand, and one file short")
    with pytest.raises(LockstepError, match=r"has no file b\.bin: add it, or download it: lockstep data fetch toy"):
        fetch.ensure("toy", None)
    fetch.ensure("digits", None)
    fetch.ensure("my own", None)
    assert server.requests == []


def test_files_of_another_set_with_the_same_names_are_not_taken(tmp_path, monkeypatch):
    fashion, mnist = SOURCES["fashion-mnist"], SOURCES["mnist"]
    for names in mnist.files:
        (tmp_path / names[0]).write_bytes(b"")
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    assert sources.present(mnist, None)
    assert sources.present(fashion, None) is None
    assert sources.present(fashion, tmp_path)  # --data says that they are its
    for sub in ("fashion-mnist", "FashionMNIST/raw"):
        (tmp_path / sub).mkdir(parents=True)
        for names in fashion.files:
            (tmp_path / sub / names[1]).write_bytes(b"")
        for folder in (None, tmp_path):
            found = sources.present(fashion, folder)
            assert found is not None
            assert {path.parent for path in found} == {tmp_path / sub}
        for names in fashion.files:
            (tmp_path / sub / names[1]).unlink()


@pytest.mark.parametrize("name", SOURCES)
def test_the_catalog(name):
    source = SOURCES[name]
    assert source.name == name
    assert name in DATASETS
    for published in source.archives:
        assert len(bytes.fromhex(published.sha256)) == 32
        assert published.size_bytes > 4000
        assert published.bases
        assert all(base.startswith("http") and base.endswith("/") for base in published.bases)
