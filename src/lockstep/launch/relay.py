"""Relay: what worker processes print goes to the streams of the program that started them."""

import codecs
import contextlib
import os
import threading
from queue import Empty, SimpleQueue
from typing import IO

_BLOCK = 1 << 16
_LAST_OUTPUT_S = 1.0  # seconds to read what workers have printed, after they have ended


class Relay:
    """Pipes whose text one thread writes to the streams `out` and `err`: the one that calls `write`.

    A notebook shows what a thread prints in the cell that the thread runs, so reading happens in other threads, and
    writing in the caller's.

    Attributes:
        descriptors: the ends into which worker processes write.
    """

    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._queue: SimpleQueue[tuple[IO[str], str]] = SimpleQueue()
        pipes = [os.pipe(), os.pipe()]
        self.descriptors = pipes[0][1], pipes[1][1]
        self._threads = [
            threading.Thread(target=self._read, args=(descriptor, stream), name="relay", daemon=True)
            for (descriptor, _), stream in zip(pipes, (out, err), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def write(self, wait_s: float) -> None:
        """Write what the worker processes have printed; if that is nothing, wait for it at most `wait_s` seconds."""
        with contextlib.suppress(Empty):
            stream, text = self._queue.get(timeout=wait_s)
            while True:
                with contextlib.suppress(OSError, ValueError):  # A stream that is closed loses text, not the run.
                    stream.write(text)
                    stream.flush()
                stream, text = self._queue.get_nowait()

    def _read(self, descriptor: int, stream: IO[str]) -> None:
        decoder = codecs.getincrementaldecoder(getattr(stream, "encoding", None) or "utf-8")("replace")
        with open(descriptor, "rb", buffering=0) as pipe:
            while data := pipe.read(_BLOCK):
                self._queue.put((stream, decoder.decode(data)))

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:  # Later workers inherit them too, so they are open until all have ended.
            os.close(descriptor)
        for thread in self._threads:
            thread.join(_LAST_OUTPUT_S)  # A process that a worker left behind may hold the pipe.
        self.write(0.0)
