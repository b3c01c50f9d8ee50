"""The index of an image folder: what is known of each file after it was read once, kept in the user's cache.

A later start compares sizes and times only, and reads the files that differ.
"""

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray

from lockstep import files
from lockstep.data import decode
from lockstep.data.decode import FORMATS, RULES, UnreadableImageError, decoder_versions
from lockstep.data.folder.scan import Scan
from lockstep.data.progress import progress, work_off
from lockstep.messages import logger

_LAYOUT = 5  # the version of the cache file
_FILE = np.dtype(  # see `Index`
    [("sha256", "u1", 32), ("format", "u1"), ("size_px", "<i4", 2), ("grey", "?"), ("stamps", "<i8", 5)]
)
# A file may change again within the clock's grain after it was read, so a file that is younger is read again next time.
_GRAIN_NS = 2_000_000_000
_LOW_63_BITS = 2**63 - 1
_AT_A_TIME = 32  # files that a thread reads before it takes more


@dataclass(frozen=True)
class Index:
    """What is known of each file of a scan, group after group.

    Attributes:
        paths: relative to the scanned folder.
        files: [n] with these fields:
            sha256: uint8 [32], of the file's bytes; zeros if the file could not be opened.
            format: uint8, position in FORMATS.
            size_px: int32 [2], width and height as stored; zeros for a file that cannot be decoded.
            grey: bool, whether the image has no colour; see `ImageFacts`.
            stamps: int64 [5], size, st_mtime_ns, st_ctime_ns, st_dev and st_ino.
        causes: row -> why the file cannot be decoded.
        momentary: the rows of `causes` whose cause is this host's, and may be gone at the next start, such as a missing
            permission, a link to nowhere or too many open files. They are never in the cache.
    """

    paths: list[str]
    files: NDArray[np.void]
    causes: dict[int, str]
    momentary: set[int] = field(default_factory=set)


class _Facts(NamedTuple):
    """What reading a file tells. `cause` is "" if the image can be decoded; see `Index` for the others."""

    sha256: bytes
    format: int = 0
    size_px: tuple[int, int] = (0, 0)
    grey: bool = False
    cause: str = ""
    momentary: bool = False


def index_of(scan: Scan) -> Index:
    """Return the index of the scanned files. Files that are new or changed are read, and decoded once, by threads.

    Of several programs at once, one reads the files and the others wait for it. A cache file that is damaged or was
    written with another decoder is ignored. A file that the system cannot read now is read again at the next start.
    """
    path = cache_file(scan.root)
    index, unknown = _known(path, scan)
    if not unknown:
        return index
    with _locked(path, scan.root):
        index, unknown = _known(path, scan)
        started_ns = time.time_ns()
        known = set(range(len(index.paths))) - set(unknown)
        done = known.copy()
        try:
            _read(scan.root, index, unknown, done)
        finally:  # A program that is stopped keeps what it has read.
            if len(done) > len(known):
                _write(path, index, sorted(done), started_ns)
    return index


def forget(root: Path) -> None:
    """Make the next start read all files of the folder `root` again, whatever their sizes and times are."""
    cache_file(root).unlink(missing_ok=True)


def cache_file(root: Path) -> Path:
    """Return the cache file of the folder `root`. Two paths to one folder share it."""
    real = os.path.realpath(root)
    name = f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:24]}.npz"
    return Path(platformdirs.user_cache_dir("lockstep")) / "folders" / name


def _read(root: Path, index: Index, unknown: Sequence[int], done: set[int]) -> None:
    """Read and decode the files of the rows `unknown` by one thread for each core.

    Add the rows to `done`, except those with a momentary cause: the cache file must not keep that cause.
    """
    parts = [unknown[start : start + _AT_A_TIME] for start in range(0, len(unknown), _AT_A_TIME)]

    def read(rows: Sequence[int]) -> None:
        facts = [_examine(os.path.join(root, index.paths[row])) for row in rows]
        for row, fact in zip(rows, facts, strict=True):
            sha256 = np.frombuffer(fact.sha256, np.uint8)
            index.files[row] = (sha256, fact.format, fact.size_px, fact.grey, index.files["stamps"][row])
            if fact.cause:
                index.causes[row] = fact.cause
            (index.momentary if fact.momentary else done).add(row)

    with progress(f"reading the images in {root}", len(unknown)) as advance:
        work_off(read, parts, advance)


def _examine(path: str) -> _Facts:
    try:
        data = decode.read_image(Path(path))
    except UnreadableImageError as error:
        return _Facts(bytes(32), cause=str(error), momentary=error.momentary)
    sha256 = hashlib.sha256(data).digest()
    try:
        facts = decode.inspect_image(data)
    except UnreadableImageError as error:
        return _Facts(sha256, cause=str(error), momentary=error.momentary)
    return _Facts(sha256, FORMATS.index(facts.format), (facts.width, facts.height), facts.grey)


def _known(path: Path, scan: Scan) -> tuple[Index, list[int]]:
    """Return the index as far as the cache file knows it, and the rows of the files that must be read."""
    every = [file for group in scan.groups for file in group.files]
    n = len(every)
    index = Index([file[0] for file in every], np.zeros(n, _FILE), {})
    # Some file systems have inodes and times of 64 bits. Their low 63 bits differ enough.
    stamps = [[value & _LOW_63_BITS for value in file[1:]] for file in every]
    index.files["stamps"] = np.array(stamps, np.int64).reshape(-1, 5)
    if (known := _load(path)) is None:
        return index, list(range(n))
    rows = {name: row for row, name in enumerate(known.paths)}
    both = [(new, rows[name]) for new, name in enumerate(index.paths) if name in rows]
    new, old = np.array(both, np.int64).reshape(-1, 2).T
    same = (known.files["stamps"][old] == index.files["stamps"][new]).all(axis=1)
    new, old = new[same], old[same]
    index.files[new] = known.files[old]
    for row, before in zip(new.tolist(), old.tolist(), strict=True):
        if before in known.causes:
            index.causes[row] = known.causes[before]
    return index, np.setdiff1d(np.arange(n), new).tolist()


def _header() -> bytes:
    return json.dumps({"layout": _LAYOUT, "rules": RULES, "decoder": decoder_versions()}, sort_keys=True).encode()


def _write(path: Path, index: Index, rows: Sequence[int], started_ns: int) -> None:
    """Replace the cache file atomically by one of the files in `rows`. If that is not possible, log it."""
    known = index.files[list(rows)]
    young = known["stamps"][:, 1:3].max(axis=1, initial=0) > started_ns - _GRAIN_NS
    known["stamps"][young] = -1  # equals those of no file
    causes = json.dumps({new: index.causes[old] for new, old in enumerate(rows) if old in index.causes}).encode()
    file = io.BytesIO()
    np.savez(
        file,
        header=np.frombuffer(_header(), np.uint8),
        paths=np.frombuffer(os.fsencode("\0".join(index.paths[row] for row in rows)), np.uint8),
        causes=np.frombuffer(causes, np.uint8),
        files=known,
    )
    try:
        files.replace(path, file.getvalue())
    except OSError as error:
        logger.warning(f"cannot write {path} ({error.strerror or error}), so the next start reads all images again")


def _load(path: Path) -> Index | None:
    """Return the index in the cache file, or None if it is missing, old or damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            if arrays["header"].tobytes() != _header():
                return None
            paths, known = os.fsdecode(arrays["paths"].tobytes()).split("\0"), arrays["files"]
            causes = {int(row): str(cause) for row, cause in json.loads(arrays["causes"].tobytes()).items()}
        return Index(paths, known, causes) if (known.dtype, known.shape) == (_FILE, (len(paths),)) else None
    except Exception:  # A damaged file raises errors of zipfile, zlib, numpy, json and others.
        return None


@contextlib.contextmanager
def _locked(path: Path, root: Path) -> Iterator[None]:
    """Hold the lock of a cache file; wait while another program holds it. Where no file can be written, hold none."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # `_write` reports it
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting = f"another program is reading the images in {root}: waiting for it"
            held.enter_context(files.locked(path.with_suffix(".lock"), lambda: logger.warning(waiting)))
        yield
