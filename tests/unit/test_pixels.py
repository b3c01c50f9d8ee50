"""A file of images: made once, by one program, whole or not at all, and mapped by all."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from lockstep.data import pixels
from lockstep.data.pixels import opened, opened_or_made, path_of
from lockstep.errors import DATA, ENVIRONMENT, LockstepError

SHAPE = (8, 6, 3)
IMAGES = np.random.default_rng(3).integers(0, 256, (50, *SHAPE), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache/lockstep/pixels"


def made(key="key", make=lambda rows: IMAGES[rows.start : rows.stop]):
    return opened_or_made(key, len(IMAGES), SHAPE, make, "50 images")


def never(rows):
    raise AssertionError(rows)


def test_a_file_is_made_once_and_mapped_by_later_programs(folder):
    folder.mkdir(parents=True)
    (folder / ".partial").write_bytes(b"left")  # by a program that was killed; its lock is free
    assert torch.equal(made(), torch.from_numpy(IMAGES))
    assert torch.equal(made(make=never), torch.from_numpy(IMAGES))
    assert list(folder.iterdir()) == [path_of("key")]
    assert np.array_equal(np.load(path_of("key")), IMAGES)  # Every program can read it.


@pytest.mark.parametrize("position", [0, 100, 128 + 7, -5, -1])
def test_a_changed_byte_anywhere_is_an_error_that_names_the_file(monkeypatch, position):
    monkeypatch.setattr(pixels, "_PART_BYTES", -(-IMAGES.nbytes // 3))
    made()
    data = bytearray(path_of("key").read_bytes())
    data[position] ^= 1
    path_of("key").write_bytes(data)
    with pytest.raises(LockstepError, match=r"is damaged: its checksum .* Delete it: it is then made again") as error:
        made(make=never)
    assert str(path_of("key")) in str(error.value)
    assert error.value.code == DATA


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_file_that_is_cut_off_is_an_error(length):
    made()
    path_of("key").write_bytes(path_of("key").read_bytes()[:length])
    with pytest.raises(LockstepError, match="is damaged"):
        opened(path_of("key"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, LockstepError])
def test_what_fails_leaves_nothing(folder, error):
    def failing(rows):
        if 40 in rows:
            raise error("at 40")
        return IMAGES[rows.start : rows.stop]

    with pytest.raises(error, match="at 40"):
        made(make=failing)
    assert list(folder.iterdir()) == []


def test_of_several_programs_one_makes_the_file(caplog):
    """Threads stand for programs: the lock of each open file is its own."""
    halfway, go_on, rows_made = threading.Event(), threading.Event(), []

    def slowly(rows):
        rows_made.extend(rows)
        halfway.set()
        assert go_on.wait(20)
        return IMAGES[rows.start : rows.stop]

    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(made, make=slowly)]
        assert halfway.wait(20)
        starts.append(pool.submit(made, make=slowly))
        until = time.monotonic() + 20
        while "another program is writing images" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.001)
        go_on.set()
        assert all(torch.equal(start.result(), torch.from_numpy(IMAGES)) for start in starts)
    assert sorted(rows_made) == list(range(50))


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_disk_without_room_is_an_error_with_the_size(folder, monkeypatch, call):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(LockstepError, match=r"^50 images, which take 7 kB, cannot be written .*no room") as error:
        made(make=never if call == "posix_fallocate" else lambda rows: IMAGES[rows.start : rows.stop])
    assert "XDG_CACHE_HOME" in str(error.value)
    assert error.value.code == ENVIRONMENT
    assert list(folder.iterdir()) == []
