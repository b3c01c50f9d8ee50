"""A program that decodes pictures, so that no file can take the memory, the time or the life of the
one that asks.

What a file takes is known only when it is decoded: its header may state a small picture, and its
tiles, its frames or its scans take gigabytes and minutes. So a decoder has an allowance, and the
operating system enforces it.
"""

import json
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.pictures.decode import Decoding, decode_image, stored_pixels

Answer = NDArray[np.uint8] | LockstepError | None


class Decoder:
    """Decodes one picture at a time, in a program that starts with the first, and again after one
    that took more.
    """

    def __init__(self, **arguments: Any) -> None:
        """Take the arguments of `answers` by name."""
        self._arguments = json.dumps(arguments)
        self._link: Connection | None = None

    def pixels(self, picture: bytes) -> NDArray[np.uint8] | None:
        """Return a picture as `decode_image` does; None if it takes more than it may. Raises:
        UnreadableImageError.
        """
        link = self._link or self._start()
        try:
            link.send_bytes(picture)
            answer: Answer = link.recv()
        # The program was ended: by the system, or by an error in a library.
        except (EOFError, OSError):
            self.end()
            return None
        if isinstance(answer, LockstepError):
            raise answer
        return answer

    def end(self) -> None:
        """End the program."""
        if self._link is not None:
            self._link.close()
            self._program.kill()
            self._program.wait()
            self._link = None

    def _start(self) -> Connection:
        link, other = Pipe()
        with other:
            self._program = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "lockstep.classify.decoder",
                    str(other.fileno()),
                    self._arguments,
                ],
                pass_fds=[other.fileno()],
                start_new_session=True,  # A terminal's Ctrl-C is for the program that asks.
            )
        self._link = link
        return link


def answers(
    link: Connection, most_px: int, limit_px: int, memory: int, seconds: float, **options: Any
) -> None:
    """Answer the pictures that come through `link`, until the program that asks has ended.

    A picture of more than `limit_px` pixels is refused, and one of more than `most_px` is not
    decoded. It may take `seconds` of CPU time, and the program `memory` bytes, which Linux
    enforces. `Decoding` takes the `options`.
    """
    decoding = Decoding(**options)
    decode_image(np.zeros((1, 1), np.uint8), decoding)  # loads Pillow's plugins
    setrlimit(RLIMIT_DATA, (memory, getrlimit(RLIMIT_DATA)[1]))
    while True:
        try:
            picture = link.recv_bytes()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)  # The signal of this timer ends the program.
        answer: Answer = None
        try:
            if stored_pixels(picture, limit_px) <= most_px:
                answer = decode_image(picture, decoding)
        except LockstepError as error:
            if error.code != ENVIRONMENT:
                answer = error
        signal.setitimer(signal.ITIMER_PROF, 0)
        link.send(answer)


if __name__ == "__main__":
    answers(Connection(int(sys.argv[1])), **json.loads(sys.argv[2]))
