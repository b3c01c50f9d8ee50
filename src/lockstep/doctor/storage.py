"""Checks of the disk, of downloaded datasets and of caches of images."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from lockstep.data.catalog import SOURCES
from lockstep.data.download import manifest
from lockstep.data.download.fetch import located
from lockstep.data.images.mapped import MappedImages, caches, complete_caches
from lockstep.doctor.finding import Finding, Status, passed
from lockstep.errors import LockstepError

_SYNC_BYTES, _SYNCS = 1 << 20, 3
_SLOW_SYNC_S = 0.2
_LOW_BYTES, _MIN_BYTES = 2_000_000_000, 100_000_000
_HASHED_BYTES = 1_000_000_000  # of downloaded datasets: about two seconds
_CACHES, _IMAGES = 8, 64  # caches, and images of each, whose CRC is computed


class Disk(NamedTuple):
    """What was measured in a folder: free bytes, median seconds to write and flush 1 MiB, and how its clock lags."""

    free_bytes: int
    sync_s: float
    lag_s: float


def existing(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def measure(folder: Path) -> Disk:
    """Measure the disk of the existing `folder` with a temporary file. Raises: OSError."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".lockstep-doctor-") as file:
        lag_s = time.time() - os.stat(file.name).st_mtime
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(bytes(_SYNC_BYTES))
            file.flush()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return Disk(shutil.disk_usage(folder).free, statistics.median(times), lag_s)


def disk(folder: Path, measured: Disk) -> Finding:
    """Judge the disk of the runs, which are or will be in `folder`."""
    free = f"{measured.free_bytes / 1e9:.1f} GB are free"
    remedy = "free some space, or name a folder on another disk: --runs DIR"
    if measured.free_bytes < _LOW_BYTES:
        status: Status = "FAIL" if measured.free_bytes < _MIN_BYTES else "WARN"
        return Finding("disk", status, f"only {free} for {folder}", remedy)
    sync = f"writing and flushing 1 MiB takes {measured.sync_s * 1e3:.0f} ms"
    if measured.sync_s > _SLOW_SYNC_S:
        remedy = "name a folder on a faster disk, --runs DIR, or save less often, --save-every-s"
        return Finding("disk", "WARN", f"{free} for {folder}, but {sync}: checkpoints take long", remedy)
    return passed("disk", f"{free} for {folder}; {sync}")


def not_writable(folder: Path, error: OSError) -> Finding:
    """Return the finding for a folder in which nothing can be written."""
    text = f"{folder} cannot be written: {error.strerror or error}"
    return Finding("disk", "FAIL", text, "name another folder: --runs DIR, or correct its access rights")


def datasets(data: Path | None, max_bytes: int = _HASHED_BYTES) -> Iterator[Finding]:
    """Judge each downloaded dataset by the SHA-256 of its files, as long as they have `max_bytes` together.

    `data` is as in `locate.find`. Of other folders, nothing is known.
    """
    here = [(source, place) for source in SOURCES.values() if source.archives and (place := located(source, data))]
    if not here:
        yield passed("data", "no dataset is here yet: train downloads it on first use")
    for source, (folder, downloaded) in here:
        check = f"data {source.name}"
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if downloaded else 0
        max_bytes -= size
        if not downloaded:
            yield passed(check, f"{folder}: placed by hand. Check it with: lockstep data check {source.name}")
        elif max_bytes < 0:
            yield passed(check, f"{folder}: not read, to save time. Check it with: lockstep data check {source.name}")
        elif problem := manifest.problem(folder):
            yield Finding(check, "FAIL", problem, f"replace it: lockstep data fetch {source.name}")
        else:
            yield passed(check, f"{folder}: every file has its SHA-256")


def image_caches(folder: Path | None = None) -> Finding:
    """Judge the caches of decoded images by the CRC of some images of the newest ones."""
    every = complete_caches(folder or caches())
    if not every:
        return passed("image caches", "none")
    count = 0
    for cache in every[:_CACHES]:
        try:
            images = MappedImages(cache)
            rows = torch.linspace(0, len(images) - 1, min(_IMAGES, len(images))).long()
            count += len(images[rows])
        except LockstepError as error:
            if not cache.exists():
                continue  # Another program has deleted it meanwhile.
            return Finding("image caches", "FAIL", str(error), f"delete {cache}: it is made again when it is needed")
    return passed(
        "image caches", f"a sample of {count} images in {min(_CACHES, len(every))} of {len(every)} caches is sound"
    )
