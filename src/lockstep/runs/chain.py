"""The chain of a run: checkpoints that name each other, so that the last one vouches for all.

A link is the checkpoint after 0 updates, after a multiple of `save_every`, or after the last one.
The metadata of every checkpoint names, as `previous`, the newest link before it, by step and
SHA-256; that of step 0 names none. The SHA-256 of a link is that of a text with one space between
its parts:

    PREVIOUS STEP CONTENTS

PREVIOUS is the SHA-256 of the link before, and is left out at step 0. CONTENTS is the
`contents_sha256` of the checkpoint, which covers `previous` too. So nothing of an earlier link can
change without another SHA-256 of the last one, and the headers alone show whether all fit: no
tensor is read. Needs no torch.
"""

import hashlib
from typing import NamedTuple

from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record
from lockstep.runs.run import Run, no_checkpoint
from lockstep.runs.statefile import SHA256, file_name, metadata_of


class Link(NamedTuple):
    """A link of a chain: the number of updates, and the SHA-256 of all up to there."""

    step: int
    sha256: str

    @staticmethod
    def of(metadata: Record) -> "Link":
        """Return the link that a checkpoint with this `metadata` is."""
        before = [metadata["previous"]["sha256"]] if metadata.get("previous") else []
        text = " ".join([*before, str(metadata["step"]), metadata[SHA256]])
        return Link(metadata["step"], _sha256(text))


def chain_of(run: Run) -> list[Link]:
    """Return the links of the `run` from step 0 to its result, or to the newest checkpoint of a run
    that is not complete. Headers are read, but no tensors.

    Raises: LockstepError, with the first thing that does not fit: a link that is missing, was
        exchanged or edited, or another recipe or result.
    """
    result, recipe = run.result(), run.recipe().digest()
    if result is None:
        if not run.steps:
            raise no_checkpoint(run)
        step, stated, by = run.steps[0], None, ""
    else:
        step, stated, by = result["steps"], result.get("link") or "", "result.json"
    links = list[Link]()
    while True:
        path = run.checkpoints / file_name(step)
        try:
            metadata = metadata_of(path)
        except FileNotFoundError:
            raise LockstepError(
                f"{path} is missing, the link that {by} names: copy it, too. With "
                f"{option('keep', 'all')}, training deletes none",
                DATA,
            ) from None
        link = Link.of(metadata)
        if stated not in (None, link.sha256):
            raise LockstepError(
                f"{path} is not the link that {by} names: one of them was exchanged or edited", DATA
            )
        if metadata.get("recipe_digest") != recipe:
            raise LockstepError(
                f"recipe.json is not the recipe of {path}: one of them was exchanged or edited",
                DATA,
            )
        links.insert(0, link)
        previous = metadata.get("previous") or {"step": -1}
        if not 0 <= previous["step"] < step:
            break
        step, stated, by = previous["step"], previous["sha256"], path.name
    if step:
        raise LockstepError(f"{path} names no link before it: the chain begins too late", DATA)
    return links


def drawn(chain: list[Link], count: int, text: str) -> list[int]:
    """Return the numbers, in order, of `count` links of the `chain` after step 0: those with the
    least SHA-256 of "TEXT LAST NUMBER".

    LAST is the SHA-256 of the last link. So who knows the text only when the chain is made public
    could not choose which links are drawn.
    """
    last = chain[-1].sha256
    numbers = range(1, len(chain))
    return sorted(sorted(numbers, key=lambda number: _sha256(f"{text} {last} {number}"))[:count])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
