"""Labels and groups that a regular expression of the user finds in the paths of images."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import LockstepError, option

# The options with an expression -> an example of one.
_EXAMPLES = {"group": "(patient[0-9]+)_", "label_from": "([a-z]+)[.]"}


def found_in(paths: Sequence[str], pattern: str, name: str) -> list[str]:
    """Return what `pattern` finds in each path: its first capture group, or else all that it
    matches; "" if that is nothing. `name` is the option that gave it.

    Raises: LockstepError if it is no regular expression, or the search takes too long.
    """
    done = subprocess.run(
        [sys.executable, "-IS", Path(__file__).with_name("groups.py")],
        input=json.dumps([pattern, paths]),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        problem = done.stderr.strip() or "the search takes too long"
        raise LockstepError(
            f"{option(name, pattern)}: {problem}: give a regular expression, as in "
            f"{_EXAMPLES[name]}"
        )
    names: list[str] = json.loads(done.stdout)
    return names
