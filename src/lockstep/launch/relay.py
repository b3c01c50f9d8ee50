"""Relay: from the stdout of worker processes to a stream of a Python program."""

import codecs
import contextlib
import os
import select
from typing import IO


class Relay:
    """A pipe from the workers' stdout to a stream that only this program can write to, such as that
    of a notebook.

    A notebook shows output in the cell of the thread that prints it, so the caller of `write` does
    the writing.

    Attributes:
        descriptor: the end into which worker processes write UTF-8.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._pipe, self.descriptor = os.pipe()
        # A notebook may have more open files than select() can wait for.
        self._ready = select.poll()
        self._ready.register(self._pipe, select.POLLIN)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, wait_s: float) -> bool:
        """Write what the workers have printed, or wait for it at most `wait_s` seconds. Return
        whether any came.
        """
        ready = bool(self._ready.poll(wait_s * 1000))
        if ready:
            text = self._decoder.decode(os.read(self._pipe, 1 << 16))
            # A stream that is closed loses text, not the run.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()
        return ready

    def close(self) -> None:
        """Write the rest and close the pipe, after all workers have ended."""
        while self.write(0.0):
            pass
        os.close(self.descriptor)
        os.close(self._pipe)
