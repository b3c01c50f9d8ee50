"""The index of an image folder: what is read again, what is not, and what happens to its cache file."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from tests.images import encoded, write

from lockstep.data import decode
from lockstep.data.folder import index as module
from lockstep.data.folder.index import cache_file, index_of
from lockstep.data.folder.scan import scan
from lockstep.errors import ENVIRONMENT, LockstepError

OLD = 1_600_000_000  # seconds; a file with this time was not changed just now


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of six images, of which one is damaged. All were written ten seconds ago."""
    root = write(tmp_path / "photos", {"a": [1, 2, 3], "b": [4, 5]})
    (root / "b/bad.png").write_bytes(encoded(9)[:50])
    later = time.time_ns() + 10 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    return root


@pytest.fixture
def examined(monkeypatch):
    """The names of the files that are read."""
    names, real = [], module._examine

    def examine(path):
        names.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(module, "_examine", examine)
    return names


def equal(one, two):
    same = [np.array_equal(one.files[name], two.files[name]) for name in ("sha256", "format", "size_px")]
    return one.paths == two.paths and one.causes == two.causes and all(same)


def test_the_second_start_reads_no_file(photos, examined):
    first = index_of(scan(photos))
    assert sorted(examined) == ["1.png", "2.png", "3.png", "4.png", "5.png", "bad.png"]
    examined.clear()
    (photos.parent / "link").symlink_to(photos)
    assert equal(index_of(scan(photos)), first)
    assert equal(index_of(scan(photos.parent / "link")), first)
    assert examined == []
    assert first.paths == ["a/1.png", "a/2.png", "a/3.png", "b/4.png", "b/5.png", "b/bad.png"]
    assert first.causes == {5: "truncated"}
    assert first.files["size_px"].tolist() == [[7, 6], [8, 6], [6, 6], [7, 6], [8, 6], [0, 0]]


def test_only_new_and_changed_files_are_read(photos, examined):
    index_of(scan(photos))
    examined.clear()
    (photos / "a/0.png").write_bytes(encoded(10))
    (photos / "a/2.png").unlink()
    (photos / "b/4.png").write_bytes(encoded(11))
    (photos / "b/bad.png").write_bytes(encoded(12))
    os.utime(photos / "b/5.png", (OLD, OLD))
    again = index_of(scan(photos))
    assert sorted(examined) == ["0.png", "4.png", "5.png", "bad.png"]
    cache_file(photos).unlink()
    assert equal(index_of(scan(photos)), again)
    assert again.causes == {}


def test_a_replaced_file_of_equal_size_and_time_is_read_again(photos, examined):
    path = photos / "a/1.png"
    os.utime(path, (OLD, OLD))
    before = index_of(scan(photos))
    examined.clear()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, (OLD, OLD))
    after = index_of(scan(photos))
    assert examined == ["1.png"]
    assert before.files["sha256"][0].tolist() != after.files["sha256"][0].tolist()


def test_folders_of_files_of_equal_size_and_times_may_change_names(tmp_path):
    """As files of a tar archive with one time for all: neither size nor times show the change, but the inodes do."""

    def at_one_time():
        found = scan(tmp_path / "photos")
        for group in found.groups:
            group.files[:] = [(name, size, OLD, OLD, *others) for name, size, _, _, *others in group.files]
        return index_of(found)

    cat, dog, other = (tmp_path / "photos" / name for name in ("cat", "dog", ".other"))
    for folder, value in ((cat, 1), (dog, 2)):
        folder.mkdir(parents=True)
        Image.new("L", (8, 8), value).save(folder / "1.bmp")
    before = at_one_time()
    cat.rename(other)
    dog.rename(cat)
    other.rename(dog)
    assert at_one_time().files["sha256"].tolist() == before.files["sha256"][::-1].tolist()


@pytest.mark.parametrize("older", ["st_mtime_ns", "st_ctime_ns"])
def test_a_file_with_one_young_time_is_read_again(photos, examined, monkeypatch, older):
    """A program may set st_mtime_ns to any time, so a young st_ctime_ns alone means that the file may change again."""

    def with_one_young_time():
        found = scan(photos)
        for group in found.groups:
            for row, (name, size, _, _, *others) in enumerate(group.files):
                times = (OLD, time.time_ns()) if older == "st_mtime_ns" else (time.time_ns(), OLD)
                group.files[row] = (name, size, *(times if name == "a/1.png" else (OLD, OLD)), *others)
        return found

    found = with_one_young_time()
    index_of(found)
    examined.clear()
    index_of(found)
    assert examined == ["1.png"]


def test_a_file_that_cannot_be_opened_now_is_read_again(photos, examined, monkeypatch):
    def too_many_files(path, most):
        if path.name == "2.png":
            raise OSError(errno.EMFILE, "Too many open files")
        return path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(decode, "read_bytes", too_many_files)
        assert index_of(scan(photos)).causes == {1: "too many open files", 5: "truncated"}
    examined.clear()
    assert index_of(scan(photos)).causes == {5: "truncated"}
    assert examined == ["2.png"]


def test_too_little_memory_is_no_damage_of_the_file(photos, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(decode, "_square", exhausted)
        with pytest.raises(LockstepError, match="not enough memory") as caught:
            index_of(scan(photos))
    assert caught.value.code == ENVIRONMENT
    assert index_of(scan(photos)).causes == {5: "truncated"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no index",
        lambda data: data[: len(data) // 2],
        lambda data: data[:200] + bytes(100) + data[300:],
        lambda data: data.replace(b'"layout": 5', b'"layout": 4'),
    ],
)
def test_a_damaged_cache_file_is_rebuilt(photos, examined, damage):
    first = index_of(scan(photos))
    data = cache_file(photos).read_bytes()
    assert damage(data) != data
    cache_file(photos).write_bytes(damage(data))
    examined.clear()
    assert equal(index_of(scan(photos)), first)
    assert len(examined) == 6
    assert len(cache_file(photos).read_bytes()) == len(data)


def test_inodes_and_times_of_64_bits_are_no_error(photos):
    found = scan(photos)
    found.groups[0].files[0] = (*found.groups[0].files[0][:2], 2**63, 2**63, 2**64 - 1, 2**64 - 1)
    assert equal(index_of(found), index_of(scan(photos)))


def test_another_decoder_reads_all_files(photos, examined, monkeypatch):
    index_of(scan(photos))
    examined.clear()
    monkeypatch.setattr(module, "decoder_versions", lambda: {"pillow": "0"})
    index_of(scan(photos))
    assert len(examined) == 6


def test_a_cache_that_cannot_be_written_costs_only_time(photos, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert index_of(scan(photos)).causes == {5: "truncated"}
    assert "so the next start reads all images again" in caplog.text


def test_what_was_read_before_a_stop_is_kept(photos, examined, monkeypatch):
    monkeypatch.setattr(module, "_AT_A_TIME", 1)
    monkeypatch.setattr("lockstep.hardware.cores", lambda: 1)
    real = module._examine

    def stopped(path):
        if len(examined) == 3:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(module, "_examine", stopped)
    with pytest.raises(KeyboardInterrupt):
        index_of(scan(photos))
    monkeypatch.setattr(module, "_examine", real)
    assert len(examined) == 3
    index_of(scan(photos))
    assert len(examined) == 6


def test_several_programs_at_once_read_each_file_once(photos, examined, monkeypatch, caplog):
    """Threads stand for programs: the lock of each open file is its own."""
    real, go_on = module._examine, threading.Event()

    def slowly(path):
        assert go_on.wait(20)
        return real(path)

    monkeypatch.setattr(module, "_examine", slowly)
    with ThreadPoolExecutor(4) as pool:
        starts = [pool.submit(index_of, scan(photos)) for _ in range(4)]
        while caplog.text.count("another program is reading the images in") < 3:
            time.sleep(0.01)
        go_on.set()
        assert all(equal(start.result(), starts[0].result()) for start in starts)
    assert len(examined) == 6


def test_progress_is_told_after_a_second(photos, monkeypatch, caplog):
    monkeypatch.setattr("lockstep.data.progress._SILENT_S", 0.0)
    index_of(scan(photos))
    assert f"reading the images in {photos}: 100%" in caplog.text
    caplog.clear()
    index_of(scan(photos))
    assert caplog.text == ""
