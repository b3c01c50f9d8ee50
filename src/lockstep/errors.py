"""What a user can get wrong, and the exit codes that say which kind it was."""

from collections.abc import Iterable
from difflib import get_close_matches

CRASH = 1
USAGE = 2
DATA = 3
ENVIRONMENT = 4
SIGNAL_BASE = 128  # 129 after SIGHUP, 130 after Ctrl-C, 143 after SIGTERM, as shells count


class LockstepError(Exception):
    """A condition the user can mend. The message says what we got, what is allowed and what to do.

    Attributes:
        code: the exit code of the program: 1 crash, 2 usage or recipe, 3 data, 4 environment or processes.
    """

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


class PeerLostError(LockstepError):
    """Another process of this run went away. Never the first cause, so it is reported only if nothing else is."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ENVIRONMENT)


def printable(text: str, keep: str = "") -> str:
    """Escape, as Python does, the characters of `text` that do not print, except those in `keep`.

    Names, notes and errors may come from other people's files, and a terminal obeys the control codes in them.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def unknown(what: str, got: str, allowed: Iterable[str]) -> str:
    """The sentence for a name that is not one of `allowed`, with the nearest names first."""
    allowed = sorted(allowed)
    near = get_close_matches(got, allowed, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {what} {got!r}: {hint}Allowed: {', '.join(allowed)}"
