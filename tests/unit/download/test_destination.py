"""The destination of a download: full disks, several programs at once, damaged files, and files that must stay."""

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.serving import TOY, listing, refused, toy

from lockstep.data import locate
from lockstep.data.catalog import SOURCES
from lockstep.data.download import fetch, manifest
from lockstep.errors import DATA, ENVIRONMENT, LockstepError


@pytest.mark.parametrize("limit", [200, len(TOY) + 1000], ids=["download", "unpacking"])
def test_a_full_disk_is_reported_and_nothing_is_left(server, destination, limit):
    """A limit on file sizes makes the same calls fail. The second limit is smaller than the larger unpacked file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        words = f"dataset toy: no room for {destination} (File too large): it needs"
        refused(toy(TOY, server.url), destination, ENVIRONMENT, words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert server.requests == ["toy.tar.gz"]


def test_a_destination_that_cannot_be_made_is_reported(tmp_path, server):
    (tmp_path / "file").write_text("")
    for destination in (tmp_path / "file/toy", tmp_path / "file/deeper/toy"):
        with pytest.raises(LockstepError, match=r"cannot write .*file.*By hand") as caught:
            fetch.fetch(toy(TOY, server.url), destination)
        assert caught.value.code == ENVIRONMENT
    assert server.requests == []


def test_one_downloads_and_others_wait(server, destination, caplog):
    """Threads stand for programs: the lock of each open file is its own. The holder removes it while others wait."""
    server.files["toy.tar.gz"] = server.half(TOY)
    (destination.parent / ".toy-partial-1").mkdir()  # of a program that was killed
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(fetch.fetch, toy(TOY, server.url), destination)
        assert server.halfway.wait(60)
        assert listing(destination.parent) == [".toy-lock", f".toy-partial-{os.getpid()}"]
        others = [pool.submit(fetch.fetch, toy(TOY, server.url), destination) for _ in range(7)]
        while caplog.text.count("another program is downloading dataset toy: waiting for it") < 7:
            time.sleep(0.01)
        server.go_on.set()
        assert first.result()
        assert not any(other.result() for other in others)
    assert server.requests == ["toy.tar.gz"]
    assert listing(destination.parent) == ["toy"]


def test_a_waiting_program_downloads_if_the_first_one_fails(server, destination, caplog):
    half = server.half(TOY[:-1])
    server.files["toy.tar.gz"] = lambda handler: half(handler) if len(server.requests) == 1 else handler.send(TOY)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch.fetch, toy(TOY, server.url), destination)
        assert server.halfway.wait(60)
        second = pool.submit(fetch.fetch, toy(TOY, server.url), destination)
        while "waiting" not in caplog.text:
            time.sleep(0.01)
        server.go_on.set()
        assert second.result()
        assert isinstance(first.exception(), LockstepError)
    assert listing(destination.parent) == ["toy"]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "manifest"])
def test_a_damaged_download_is_named_and_replaced(server, destination, damage):
    source = toy(TOY, server.url)
    fetch.fetch(source, destination)
    path = destination / (manifest.NAME if damage == "manifest" else "toy-files/b.bin")
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(b"?" + path.read_bytes()[1:])
    else:
        path.write_bytes(path.read_bytes()[:-10])
    assert str(path) in manifest.problem(destination)
    assert fetch.located(source, destination.parent) == (destination, True)
    if damage == "manifest":  # the manifest no longer says which files a download made, so none is deleted
        refused(source, destination, DATA, "holds toy-files/a.bin")
        return
    server.files["toy.tar.gz"] = 500
    before = {p: p.read_bytes() for p in destination.rglob("*.bin")}
    refused(source, destination, DATA, "500")
    assert {p: p.read_bytes() for p in destination.rglob("*.bin")} == before
    server.files["toy.tar.gz"] = TOY
    assert fetch.fetch(source, destination)
    assert manifest.problem(destination) is None
    assert listing(destination.parent) == ["toy"]


def test_a_folder_with_other_files_is_never_replaced(server, destination):
    source = toy(TOY, server.url)
    destination.mkdir()
    (destination / "thesis.txt").write_text("years of work")
    refused(source, destination, DATA, "was not made by a download, and holds thesis.txt: move it away")
    (destination / "thesis.txt").unlink()
    assert fetch.fetch(source, destination)  # an empty folder holds nothing to lose
    (destination / "toy-files/a.bin").unlink()
    (destination / "notes.txt").write_text("mine")
    refused(source, destination, DATA, "holds notes.txt")
    assert server.requests == ["toy.tar.gz"]


def test_first_use_downloads_into_the_cache_and_only_once(server, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(SOURCES, "toy", toy(TOY, server.url))
    for _ in range(2):
        fetch.ensure("toy", None)
    assert caplog.messages[2:] == [f"dataset toy is in {tmp_path}/cache/lockstep/toy"]
    assert listing(tmp_path / "cache/lockstep") == ["toy"]
    assert server.requests == ["toy.tar.gz"]
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "own"))
    fetch.ensure("toy", None)  # it is in the cache
    assert server.requests == ["toy.tar.gz"]
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    fetch.ensure("toy", None)
    assert listing(tmp_path / "own/toy") == [manifest.NAME, "toy-files"]


def test_first_use_downloads_nothing_if_the_user_gives_a_folder(server, tmp_path, monkeypatch):
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


def test_files_of_another_dataset_with_the_same_names_are_not_used(tmp_path, monkeypatch):
    fashion, mnist = SOURCES["fashion-mnist"], SOURCES["mnist"]
    for names in mnist.files:
        (tmp_path / names[0]).write_bytes(b"")
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    assert locate.present(mnist, None)
    assert locate.present(fashion, None) is None
    assert locate.present(fashion, tmp_path)  # the user says that they belong to Fashion-MNIST
    for sub in ("fashion-mnist", "FashionMNIST/raw"):
        (tmp_path / sub).mkdir(parents=True)
        for names in fashion.files:
            (tmp_path / sub / names[1]).write_bytes(b"")
        for folder in (None, tmp_path):
            found = locate.present(fashion, folder)
            assert found is not None
            assert {path.parent for path in found} == {tmp_path / sub}
        for names in fashion.files:
            (tmp_path / sub / names[1]).unlink()
