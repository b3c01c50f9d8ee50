"""DecodedImages: images that threads decode ahead of time, for disks without room for a cache."""

import threading
import weakref
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np

from lockstep import hardware
from lockstep.data.images.base import Bytes, Images, Rows, Source
from lockstep.errors import DATA, LockstepError

AHEAD_BYTES = 256 << 20  # of images that are decoded before they are read, at most, in one process

_Job = tuple["Future[Bytes]", Source, int]


class DecodedImages(Images):
    """Images decoded when they are read, or ahead of that by threads if they are prefetched.

    Images of prefetched rows are held until they are read: at most `ahead_bytes` of them. The thread that reads helps
    with what is missing. The pixels do not depend on threads, order or hints, as each image is decoded on its own.

    Attributes:
        reason: why the images are not read from a cache.
    """

    def __init__(
        self, source: Source, reason: str = "", *, threads: int | None = None, ahead_bytes: int = AHEAD_BYTES
    ) -> None:
        super().__init__(source.count, source.shape)
        self.reason = reason
        self._source = source
        self._image_bytes = int(np.prod(source.shape))
        self._ahead_images = ahead_bytes // self._image_bytes
        self._threads = threads or hardware.cores()
        self._waiting: SimpleQueue[_Job | None] | None = None
        self._ahead: dict[int, Future[Bytes]] = {}  # by row

    @property
    def held_bytes(self) -> int:
        """Return the bytes of images that are decoded, or will be soon, and not yet read."""
        return len(self._ahead) * self._image_bytes

    def _prefetch(self, rows: Rows) -> None:
        for row in rows.tolist():
            if len(self._ahead) >= self._ahead_images:
                return
            if row not in self._ahead:
                self._ahead[row] = self._submit(row)

    def _gather(self, rows: Rows) -> Bytes:
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)} images")
        needed: dict[int, Future[Bytes]] = {}
        for row in rows.tolist():
            if row not in needed:
                needed[row] = self._ahead.pop(row) if row in self._ahead else self._submit(row)
        # The threads take the first images, and this one takes the last.
        own = {row: decoded(self._source, row) for row, future in reversed(needed.items()) if future.cancel()}
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for i, row in enumerate(rows.tolist()):
            images[i] = own[row] if row in own else needed[row].result()
        return images

    def _submit(self, row: int) -> "Future[Bytes]":
        """Return the future image `row`, which waits for a thread."""
        if self._waiting is None:
            self._waiting = SimpleQueue()
            for _ in range(self._threads):
                # Daemons, unlike those of a ThreadPoolExecutor, so that the end of the program does not wait for a
                # file on a slow disk. They hold no reference to these images, so that they end with them.
                threading.Thread(target=_work, args=(self._waiting,), daemon=True).start()
            weakref.finalize(self, _end, self._waiting, self._threads)
        future: Future[Bytes] = Future()
        self._waiting.put((future, self._source, row))
        return future


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


def _work(waiting: "SimpleQueue[_Job | None]") -> None:
    while (job := waiting.get()) is not None:
        future, source, row = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(decoded(source, row))
            except BaseException as error:
                future.set_exception(error)
        del job, future  # Its image must not stay in memory until the next one comes.


def _end(waiting: "SimpleQueue[_Job | None]", threads: int) -> None:
    for _ in range(threads):
        waiting.put(None)
