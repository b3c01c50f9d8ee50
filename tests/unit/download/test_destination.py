"""Where downloads go: full disks, several programs at once, what is there already, and what is nobody's to replace."""

import os
import signal
import threading

import pytest
from tests.serving import TOY, listing, refused, toy

from lockstep.data import DATASETS
from lockstep.data import locate as sources
from lockstep.data.catalog import SOURCES
from lockstep.data.download import fetch, manifest
from lockstep.errors import DATA, ENVIRONMENT, LockstepError


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
