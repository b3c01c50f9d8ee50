"""Images of a cache on disk, and images decoded on the fly: the same pixels, whatever happens to either."""

import errno
import gc
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.data.images import DecodedImages, MappedImages, open_images
from lockstep.data.images.mapped import locked_cache, new_cache
from lockstep.errors import DATA, LockstepError

SHAPE = (8, 6, 3)


class Files:
    """A source of images. It counts which rows it decodes, and raises an error that stands in the place of an image."""

    def __init__(self, count=50):
        self.shape, self.count = SHAPE, count
        self.pixels = np.random.default_rng(3).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
        self.images, self.decoded = list(self.pixels), []

    def decode(self, row):
        self.decoded.append(row)
        if isinstance(self.images[row], BaseException):
            raise self.images[row]
        return self.images[row].copy()


@pytest.fixture
def files():
    return Files()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/lockstep/images"


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def images_of(files, kind):
    return DecodedImages(files, threads=3) if kind == "decoded" else open_images(files, "key")


@pytest.mark.parametrize("kind", ["mapped", "decoded"])
def test_images_are_indexed_as_a_tensor(files, kind):
    images, tensor = images_of(files, kind), torch.from_numpy(files.pixels)
    assert isinstance(images, MappedImages if kind == "mapped" else DecodedImages)
    assert images.shape == tuple(tensor.shape)
    assert len(images) == len(tensor)
    for index in (rows(3, 49, 3, 0), rows(), slice(10), slice(45, 80), slice(None), slice(0, 9, 4), slice(5, 5)):
        assert torch.equal(images[index], tensor[index])
    with pytest.raises(IndexError):
        images[rows(0, 50)]


@pytest.mark.parametrize("kind", ["mapped", "decoded"])
def test_a_selection_is_numbered_from_0_and_copies_nothing(files, kind):
    images, tensor = images_of(files, kind), torch.from_numpy(files.pixels)
    chosen = np.array([7, 3, 40, 41])
    part = images.select(chosen)
    assert part.shape == (4, *SHAPE)
    assert torch.equal(part[rows(3, 0)], tensor[[41, 7]])
    assert torch.equal(part.select(np.array([2, 1]))[:], tensor[[40, 3]])
    assert torch.equal(part.to(torch.device("cpu"))[1:], tensor[[3, 40, 41]])
    assert (
        images.to(torch.device("meta"))[rows(1, 2)].device.type
        == part.to(torch.device("meta"))[:].device.type
        == "meta"
    )
    part.prefetch(rows(2))
    assert part.held_bytes == images.held_bytes == (0 if kind == "mapped" else np.prod(SHAPE))
    with pytest.raises(IndexError):
        part[rows(4)]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 49), max_size=12)), max_size=12),
    threads=st.integers(1, 4),
    ahead=st.integers(0, 20),
)
def test_pixels_do_not_depend_on_hints_threads_or_order(files, calls, threads, ahead):
    images = DecodedImages(files, threads=threads, ahead_bytes=ahead * int(np.prod(SHAPE)))
    for hint, numbers in calls:
        if hint:
            images.prefetch(rows(*numbers))
            assert images.held_bytes <= ahead * np.prod(SHAPE)
        else:
            assert torch.equal(images[rows(*numbers)], torch.from_numpy(files.pixels[numbers]))


# ---- the cache


def test_the_cache_is_made_once_and_read_by_later_programs(files, cache):
    open_images(files, "key")
    assert sorted(files.decoded) == list(range(50))
    again = open_images(files, "key")
    assert len(files.decoded) == 50
    assert torch.equal(again[:], torch.from_numpy(files.pixels))
    (folder,) = cache.iterdir()
    assert listing(folder) == ["crc32", "manifest.json", "pixels"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["count"], manifest["shape"], manifest["key"]) == (50, list(SHAPE), "key")
    assert {"pillow", "numpy", "lockstep", "python"} <= manifest["versions"].keys()
    assert (folder / "pixels").read_bytes() == files.pixels.tobytes()
    open_images(files, "other key")
    open_images(Files(49), "key")
    assert len(listing(cache)) == 3


def test_a_damaged_image_is_an_error_that_names_the_folder_to_delete(files, cache):
    early = open_images(files, "key")
    early[rows(7)]
    (folder,) = cache.iterdir()
    damage(folder / "pixels", 7 * int(np.prod(SHAPE)) + 5)
    early[rows(7)]  # An image is verified only when it is read first.
    images = open_images(files, "key")
    assert torch.equal(images[rows(6, 8)], torch.from_numpy(files.pixels[[6, 8]]))
    for _ in range(2):  # it is not forgotten
        with pytest.raises(LockstepError, match="image 7 is not what was written") as error:
            images[rows(6, 7)]
    assert f"Delete the folder {folder}" in str(error.value)
    assert error.value.code == DATA
    shutil.rmtree(folder)
    assert torch.equal(open_images(files, "key")[rows(7)], torch.from_numpy(files.pixels[[7]]))


@pytest.mark.parametrize("name", ["pixels", "crc32", "manifest.json"])
@pytest.mark.parametrize("how", ["missing", "shorter", "empty"])
def test_an_incomplete_cache_is_an_error(files, cache, name, how):
    open_images(files, "key")
    (folder,) = cache.iterdir()
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(data[: -len(data) // 2] if how == "shorter" else b"")
    with pytest.raises(LockstepError, match=f"is damaged.* Delete the folder {folder}"):
        open_images(files, "key")


@pytest.mark.parametrize("kind", ["mapped", "decoded"])
def test_a_source_that_decodes_another_shape_is_an_error(files, kind):
    files.images[3] = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(LockstepError, match=r"image 3 was decoded to uint8 \[4, 4, 3\], expected uint8 \[8, 6, 3\]"):
        images_of(files, kind)[:]


@pytest.mark.parametrize("error", [KeyboardInterrupt, LockstepError])
def test_a_build_that_fails_leaves_nothing(files, cache, error):
    files.images[40] = error("at 40")
    with pytest.raises(error, match="at 40"):
        open_images(files, "key")
    assert listing(cache) == []


def test_partial_caches_of_killed_programs_are_removed_and_those_being_written_stay(files, cache):
    """The lock of a killed program is free."""
    with locked_cache("written"):
        for name in (".killed-partial", ".written-partial"):
            (cache / name).mkdir()
        open_images(files, "key")
        assert {".killed-partial", ".written-partial"} & set(listing(cache)) == {".written-partial"}
    open_images(files, "other key")
    assert len(listing(cache)) == 2


def test_one_builder_makes_the_cache_and_others_wait_and_map_it(files, cache, caplog):
    """Threads stand for programs: the lock of each open file is its own."""
    decode, halfway, go_on = files.decode, threading.Event(), threading.Event()

    def slowly(row):
        if row == 40:
            halfway.set()
            assert go_on.wait(20)
        return decode(row)

    files.decode = slowly
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(open_images, files, "key")
        assert halfway.wait(20)
        second = pool.submit(open_images, files, "key")
        wait_until(lambda: "another program is making the cache" in caplog.text)
        go_on.set()
        for images in (first.result(), second.result()):
            assert torch.equal(images[:], torch.from_numpy(files.pixels))
    assert sorted(files.decoded) == list(range(50))
    assert len(listing(cache)) == 1


# ---- room


def test_a_cache_over_the_limit_is_not_made(files, cache):
    needed = files.pixels.nbytes / 1e9
    images = open_images(files, "key", needed * 0.99)
    assert isinstance(images, DecodedImages)
    assert torch.equal(images[:], torch.from_numpy(files.pixels))
    assert images.reason == "the cache needs 7 kB; the cache limit is 7 kB"
    assert isinstance(open_images(files, "key", needed), MappedImages)
    assert "other caches in" in open_images(files, "other", 1.5 * needed).reason
    assert isinstance(open_images(files, "key", needed / 2), MappedImages)


def test_only_complete_caches_that_still_exist_are_counted(files, cache, monkeypatch):
    for name in (".other-partial", "complete", "deleted"):
        (cache / name).mkdir(parents=True)
        (cache / name / "pixels").write_bytes(bytes(100))
    real = Path.stat

    def deleted(path, **options):
        if "deleted" in path.parts:
            raise FileNotFoundError
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", deleted)
    needed = files.pixels.nbytes
    assert isinstance(open_images(files, "key", (needed + 99) / 1e9), DecodedImages)
    assert isinstance(open_images(files, "key", (needed + 100) / 1e9), MappedImages)


def test_a_cache_that_another_program_makes_at_the_same_time_is_kept(cache, monkeypatch):
    cache.mkdir(parents=True)
    destination = cache / "given"
    with new_cache(cache / "own") as writer:
        writer.write(0, np.zeros((2, *SHAPE), np.uint8))
        writer.finish(2, SHAPE, {})
        writer.destination = destination
        real = Path.exists

        def exists(path, **options):
            if path == destination and not real(path):
                shutil.copytree(writer.folder, destination)
                return False
            return real(path, **options)

        monkeypatch.setattr(Path, "exists", exists)
    assert listing(cache) == ["given"]
    assert len(MappedImages(destination)) == 2


def test_a_limit_of_0_uses_no_cache_even_if_there_is_one(files, cache):
    assert open_images(files, "key", 0).reason == "the cache limit is 0"
    assert not cache.exists()
    open_images(files, "key")
    assert isinstance(open_images(files, "key", 0), DecodedImages)


def test_by_default_a_cache_takes_at_most_half_of_the_free_disk(files, monkeypatch):
    needed = files.pixels.nbytes
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    free = 2 * needed - 1
    assert "--cache-limit GB allows more" in open_images(files, "key").reason
    free = 2 * needed
    assert isinstance(open_images(files, "key"), MappedImages)


def test_a_cache_folder_that_cannot_be_written_is_noted(files, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    images = open_images(files, "key")
    assert f"no cache can be written in {cache}" in images.reason
    assert torch.equal(images[:], torch.from_numpy(files.pixels))


def test_a_full_disk_is_noted_before_anything_is_decoded(files, cache, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "the disk is full" in open_images(files, "key", 1.0).reason
    assert (listing(cache), files.decoded) == ([], [])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells the resident pages of a mapping")
def test_the_resident_memory_of_a_mapping_is_bounded(cache, monkeypatch):
    """16 MiB of images are read, and at most 1 MiB more than what the system maps around a page stays resident."""
    monkeypatch.setattr("lockstep.data.images.mapped._RESIDENT_BYTES", 1 << 20)
    pixels = np.random.default_rng(0).integers(0, 256, (128, 256, 512), dtype=np.uint8)[..., None]
    images = open_images(SimpleNamespace(count=128, shape=(256, 512, 1), decode=lambda row: pixels[row]), "big")
    for row in range(0, 128, 4):
        images[row : row + 4]
    mapping = Path("/proc/self/smaps").read_text().split("/pixels\n")[1]
    resident_kb = int(mapping.split("Rss:")[1].split()[0])
    assert 0 <= resident_kb < 4 << 10


# ---- on the fly


def wait_until(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_the_reading_thread_helps_with_what_is_missing(files):
    images = DecodedImages(files, threads=1)
    busy = threading.Event()
    decode = files.decode

    def blocked(row):
        if row == 0:
            busy.wait(20)
        return decode(row)

    files.decode = blocked
    images.prefetch(rows(0))  # keeps the only thread busy
    assert torch.equal(images[rows(1, 2, 3)], torch.from_numpy(files.pixels[1:4]))
    busy.set()
    assert torch.equal(images[rows(0)], torch.from_numpy(files.pixels[:1]))


def test_an_error_in_a_thread_is_raised_when_the_image_is_read(files):
    files.images[5] = LockstepError("5.png: no image")
    images = DecodedImages(files, threads=2)
    images.prefetch(slice(0, 10))
    wait_until(lambda: len(files.decoded) == 10)
    assert len(images[slice(0, 5)]) == 5
    for _ in range(2):
        with pytest.raises(LockstepError, match=r"5\.png"):
            images[slice(4, 7)]


def test_the_threads_end_with_the_images(files):
    gc.collect()
    before = set(threading.enumerate())
    images = DecodedImages(files, threads=3)
    images[:]
    own = [thread for thread in threading.enumerate() if thread not in before]
    assert len(own) == 3
    assert all(thread.daemon for thread in own)  # so that one that hangs does not keep the program alive
    del images
    gc.collect()
    wait_until(lambda: not any(thread.is_alive() for thread in own))
