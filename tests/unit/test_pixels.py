"""Rows of images in a file: each is made once, by one program, and mapped by all. Damage is
noticed.
"""

import errno
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.helpers import lockstep_error
from tests.images import noise

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.pictures import pixels
from lockstep.pictures.pixels import RowCache, _checksum as checksum

SHAPE = (8, 6, 3)
IMAGES = noise(3, 50, *SHAPE)
IDS = [bytes([number]) * 32 for number in range(1, 51)]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache/lockstep/pixels"


def made(numbers=range(50), make=lambda number: IMAGES[number], then=lambda: None):
    """Return the numbers of the images that were made, when all `numbers` are there with their
    bits.
    """
    computed, rows = [], RowCache("key", SHAPE)
    then()

    def counted(position):
        computed.append(numbers[position])
        return make(numbers[position])

    found = rows.find_or_make([IDS[number] for number in numbers], counted, "50 images")
    assert torch.equal(rows.images[found], torch.from_numpy(IMAGES[[*numbers]]))
    return sorted(computed)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.glob("*.[ri]*s"))


def test_each_row_is_made_once_whatever_is_added_or_removed(folder):
    assert made(range(10, 40)) == [*range(10, 40)]
    assert made([12, 3, 39, 12, 3]) == [3]  # The same picture may stand in two folders.
    assert made(range(5, 45)) == [5, 6, 7, 8, 9, 40, 41, 42, 43, 44]
    assert made(range(20, 30)) == []
    assert sorted(path.suffix for path in folder.iterdir()) == [".checked", ".ids", ".rows"]
    assert size_of(folder) == 41 * (8 * 6 * 3 + 36)


@pytest.mark.parametrize(
    ("file", "change", "again", "noted"),
    [
        ("rows", lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:], [3], True),
        ("rows", lambda data: data[:-1], [49], False),
        ("rows", lambda data: b"", [*range(50)], False),
        ("ids", lambda data: data[:36] + bytes([data[36] ^ 64]) + data[37:], [1], False),
        ("ids", lambda data: data[:71] + bytes([data[71] ^ 1]) + data[72:], [1], True),
        ("ids", lambda data: data[:-1], [49], False),
        # a row that was not finished
        ("ids", lambda data: data[:1080] + bytes(36) + data[1116:], [30], False),
    ],
)
def test_damaged_rows_alone_are_made_again(folder, caplog, file, change, again, noted):
    made()
    path = next(folder.glob(f"*.{file}"))
    path.write_bytes(change(path.read_bytes()))
    assert made() == again
    assert made() == []
    assert ("1 row damaged and made again" in caplog.text) == noted


def test_rows_are_compared_with_their_checksums_once(folder, monkeypatch, tmp_path):
    """Then the rows that are new, and all of them after a change or a start of the system."""
    checked = []
    monkeypatch.setattr(
        pixels, "_checksum", lambda row_id, row: checked.append(row_id) or checksum(row_id, row)
    )

    def times(numbers):
        checked.clear()
        made(numbers)
        return len(checked)

    assert times(range(40)) == 2 * 40  # to write them, and as they are read again
    assert times(range(40)) == 0
    assert times(range(43)) == 2 * 3
    assert times(range(43)) == 0
    os.utime(next(folder.glob("*.rows")), (9, 9))
    assert times(range(43)) == 43
    assert times(range(43)) == 0
    monkeypatch.setattr(pixels, "_BOOT", tmp_path / "boot")
    assert [times(range(43)), times(range(43))] == [43, 43]  # It is unknown when the system began.
    (tmp_path / "boot").write_text("another start")
    assert [times(range(43)), times(range(43))] == [43, 0]


def test_a_damaged_row_is_not_taken_as_checked_by_a_later_start(folder):
    """Also if the start that found it did not need it."""
    made()
    path = next(folder.glob("*.rows"))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    assert (RowCache("key", SHAPE).find(IDS[1:]) >= 0).all()
    assert RowCache("key", SHAPE).find(IDS[:1]).tolist() == [-1]
    assert made() == [0]


def test_rows_survive_an_error_and_a_kill():
    def failing(number):
        if number == 40:
            raise LockstepError("at 40")
        return IMAGES[number]

    with lockstep_error("at 40"):
        made(make=failing)
    rest = [number for number in range(50) if (RowCache("key", SHAPE).find(IDS) < 0)[number]]
    assert 40 in rest
    assert len(rest) <= 18  # those of the thread that failed, and of the parts after it
    if (child := os.fork()) == 0:
        made(
            make=lambda number: (
                os.kill(os.getpid(), signal.SIGKILL) if number == rest[3] else IMAGES[number]
            )
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert made() == [number for number in rest if number not in rest[:3]]


def test_of_several_programs_one_makes_the_rows(caplog):
    """Threads stand for programs: the lock of each open file is its own."""
    halfway, go_on = threading.Event(), threading.Event()

    def slowly(number):
        halfway.set()
        assert go_on.wait(20)
        return IMAGES[number]

    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(made, make=slowly)]
        assert halfway.wait(20)
        starts.append(pool.submit(made, make=slowly))
        until = time.monotonic() + 20
        while "another program is writing images" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.001)
        go_on.set()
        assert [start.result() for start in starts] == [[*range(50)], []]


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_disk_without_room_is_an_error_with_the_size(folder, monkeypatch, call):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    made(range(10))
    monkeypatch.setattr(os, call, full)
    with lockstep_error(
        r"^50 images, which take 6 kB, cannot be written .*no room", ENVIRONMENT
    ) as error:
        made()
    assert "XDG_CACHE_HOME" in str(error.value)
    assert size_of(folder) == 10 * (8 * 6 * 3 + 36)
    monkeypatch.undo()
