"""The index of a folder: what reading and decoding each image once told, in the user's cache.

A later start compares sizes and times only, and reads the files that differ.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from lockstep import files
from lockstep.pictures import decode
from lockstep.pictures.decode import UnreadableImageError
from lockstep.pictures.listing import no_collections
from lockstep.pictures.manifest import Manifest
from lockstep.pictures.rows import read_picture
from lockstep.pictures.threads import in_threads

Facts = tuple[Any, ...]  # the fields of `Photo` from `cause` on

_BLOCK = 1_000  # lines of the index that are parsed at once, faster than one by one
_STALE = 1_000  # entries of an index that are allowed besides twice as many as there are photos


class Photo(NamedTuple):
    """An image that is an example, and what reading its file told; the defaults mean that it cannot
    be decoded.

    Attributes:
        path: relative to the listed folder, with "/".
        split, labels, group: see `Row`.
        cause: why the file cannot be decoded; "" if it can.
        sha256: of the file's bytes, in hex; "" if they cannot be read.
        format, width, height, grey, dhash, pixels_sha256: see `decode.Metadata`.
    """

    path: str
    split: str
    labels: tuple[str, ...]
    group: str
    cause: str = ""
    sha256: str = ""
    format: str = ""
    width: int = 0
    height: int = 0
    grey: bool = False
    dhash: str = ""
    pixels_sha256: str = ""

    @property
    def shorter_side(self) -> int:
        """The shorter side, in pixels."""
        return min(self.width, self.height)


def read_photos(manifest: Manifest) -> list[Photo]:
    """Return the photos of a manifest. Files that are new or changed are read, by threads.

    Of several programs at once, one reads the files and the others wait for it. What is read is in
    the index at once, so a start after Ctrl-C goes on. Entries that are damaged, and an index that
    was written with another decoder, are ignored. Without a place for it, the next start reads all
    files again.
    """
    root = manifest.listing.root
    doing = f"reading the images in {root}"
    index = index_file(root)
    with ExitStack() as held:
        with suppress(OSError):
            index.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(files.locked(index.with_suffix(".lock"), doing))
        known = _load(index, manifest)
        # in the order in which they are stored
        unknown = [
            path for path in manifest.listing.images if path in manifest.rows and path not in known
        ]
        add = held.enter_context(_adding_to(index))

        def examine(path: str) -> None:
            known[path] = _examined(root / path)
            add(path, manifest.listing.images[path], known[path])

        in_threads(doing, examine, unknown)
    with no_collections():
        return [Photo(path, *row, *known.pop(path)) for path, row in manifest.rows.items()]


def index_file(root: Path) -> Path:
    """Return the index of the folder `root`. Two paths to one folder share it."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
    return files.cached(f"folders/{name}.jsonl")


def _examined(path: Path) -> Facts:
    sha256 = ""
    try:
        data = read_picture(path)
        sha256 = hashlib.sha256(data).hexdigest()
        return "", sha256, *decode.inspect_image(data)
    except UnreadableImageError as error:
        return str(error), sha256


@no_collections()
def _load(index: Path, manifest: Manifest) -> dict[str, Facts]:
    """Return path -> facts, of the images in the index that have not changed. Files whose stamps
    may not show a change are not taken from it.

    An index with many other entries is written anew, and one of another decoder is removed.
    """
    unsure = files.unstamped()
    images = manifest.listing.images
    known: dict[str, Facts] = {}
    entries = 0
    with suppress(OSError):
        with open(index, "rb") as file:
            if file.readline().rstrip() != _header():
                index.unlink()
                return {}
            for block in iter(lambda: [*islice(file, _BLOCK)], []):
                entries += len(block)
                parts = [line.rstrip(b"\n").partition(b" ") for line in block]
                sound = [text for crc, _, text in parts if crc == b"%08x" % zlib.crc32(text)]
                for path, seen, *values in json.loads(b"[%b]" % b",".join(sound)):
                    listed = path in manifest.rows and seen == [*images[path]]
                    if listed and unsure.isdisjoint(seen[3:4]):
                        known[path] = "", *values
        if entries > 2 * len(known) + _STALE:
            new = index.with_suffix(".new")
            new.unlink(missing_ok=True)
            with _adding_to(new) as add:
                for path, facts in known.items():
                    add(path, images[path], facts)
            new.replace(index)
    return known


@contextmanager
def _adding_to(index: Path) -> Iterator[Callable[[str, tuple[int, ...], Facts], None]]:
    """Yield a function that adds the path, stamps and facts of an image to an index. It is a no-op
    without a place for the index.

    An entry has a checksum, and begins a line, so one that was not finished damages no other. Files
    that cannot be read are left out, as the cause may be this host's: a missing permission.
    """
    try:
        descriptor = files.open_to_write(index, os.O_APPEND)
    except OSError:
        yield lambda *_: None
        return

    def add(path: str, seen: tuple[int, ...], facts: Facts) -> None:
        cause, *values = facts
        if not cause:
            text = json.dumps([path, seen, *values]).encode()
            with suppress(OSError):
                os.write(descriptor, b"\n%08x %b" % (zlib.crc32(text), text))

    try:
        with suppress(OSError):
            if not os.fstat(descriptor).st_size:
                os.write(descriptor, _header())
        yield add
    finally:
        os.close(descriptor)


def _header() -> bytes:
    """Return the first line of an index. It says which decoder and which fields the photos have."""
    return files.cache_key("photos", decoder=decode.identity(), fields=Photo._fields).encode()
