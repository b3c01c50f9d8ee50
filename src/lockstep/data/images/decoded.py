"""DecodedImages: images that threads decode ahead of need, for disks without room for a cache."""

import threading
import weakref
from queue import SimpleQueue

import numpy as np

from lockstep import hardware
from lockstep.data.images.base import Bytes, Images, Rows, Source
from lockstep.errors import DATA, LockstepError

AHEAD_BYTES = 256 << 20  # of images that are decoded before they are read, at most, in one process


class DecodedImages(Images):
    """Images decoded when they are read, or ahead of that by threads if they are expected.

    Images of expected rows are held until they are read: at most `ahead_bytes` of them. The thread that reads helps
    with what is missing. The pixels do not depend on threads, order or hints, as each image is decoded on its own.
    """

    def __init__(self, source: Source, *, threads: int | None = None, ahead_bytes: int = AHEAD_BYTES) -> None:
        super().__init__(source.count, source.shape)
        self._source = source
        self._image_bytes = int(np.prod(source.shape))
        self._ahead_images = ahead_bytes // self._image_bytes
        self._threads = threads or hardware.cores()
        self._waiting: SimpleQueue[_Decoding | None] | None = None
        self._ahead: dict[int, _Decoding] = {}  # by row; in the order in which they were expected

    @property
    def held_bytes(self) -> int:
        """Return the bytes of images that are decoded, or will be soon, and not yet read."""
        return len(self._ahead) * self._image_bytes

    def _expect(self, rows: Rows) -> None:
        for row in rows.tolist():
            if len(self._ahead) >= self._ahead_images:
                return
            if row not in self._ahead:
                self._ahead[row] = self._started(row)

    def _gather(self, rows: Rows) -> Bytes:
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)} images")
        needed: dict[int, _Decoding] = {}
        for row in rows.tolist():
            if row not in needed:
                needed[row] = self._ahead.pop(row) if row in self._ahead else self._started(row)
        # The threads take the first images, and this one takes the last.
        for decoding in reversed(needed.values()):
            decoding.run()
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for i, row in enumerate(rows.tolist()):
            images[i] = needed[row].result()
        return images

    def _started(self, row: int) -> "_Decoding":
        """Return the decoding of `row`, which waits for a thread."""
        if self._waiting is None:
            self._waiting = SimpleQueue()
            for _ in range(self._threads):
                # Daemons, so that the end of the program does not wait for a file on a slow disk. They hold no
                # reference to these images, so that they end with them.
                threading.Thread(target=_work, args=(self._waiting,), daemon=True).start()
            weakref.finalize(self, _end, self._waiting, self._threads)
        decoding = _Decoding(self._source, row)
        self._waiting.put(decoding)
        return decoding


class _Decoding:
    """The decoding of one image, by whichever thread runs it first."""

    def __init__(self, source: Source, row: int) -> None:
        self._source, self._row = source, row
        self._taken, self._done = threading.Lock(), threading.Event()
        self._image: Bytes | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Decode the image, unless a thread has begun with it."""
        if not self._taken.acquire(blocking=False):
            return
        try:
            self._image = decoded(self._source, self._row)
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):  # a signal ends the program
                raise
        finally:
            self._done.set()

    def result(self) -> Bytes:
        """Wait for the image, and return it. Raises: the error of its decoding."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._image is not None
        return self._image


def decoded(source: Source, row: int) -> Bytes:
    """Return image number `row` of `source`. Raises: LockstepError if it cannot be read or has another shape."""
    try:
        image = source.decode(row)
    except OSError as error:
        raise LockstepError(f"image {row} cannot be read: {error}", DATA) from None
    if image.shape != tuple(source.shape) or image.dtype != np.uint8:
        raise LockstepError(
            f"image {row} was decoded to {image.dtype} {list(image.shape)}, expected uint8 {list(source.shape)}", DATA
        )
    return image


def _work(waiting: "SimpleQueue[_Decoding | None]") -> None:
    while (decoding := waiting.get()) is not None:
        decoding.run()
        del decoding  # Its image must not stay in memory until the next one comes.


def _end(waiting: "SimpleQueue[_Decoding | None]", threads: int) -> None:
    for _ in range(threads):
        waiting.put(None)
