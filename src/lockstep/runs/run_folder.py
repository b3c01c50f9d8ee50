"""RunFolder: the folder of a run, as process 0 trains it: only this program writes there."""

import contextlib
import fcntl
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.errors import ENVIRONMENT, LockstepError, option
from lockstep.files import (
    Record,
    finite,
    flush,
    lock_file,
    open_to_write,
    read_lines,
    remove_abandoned,
    replace,
    require_own,
)
from lockstep.messages import logger
from lockstep.runs import saver, statefile
from lockstep.runs.entries import metrics_row
from lockstep.runs.run import Run, is_held
from lockstep.runs.statefile import StateFile, Tensors

_NONE: Tensors = MappingProxyType({})


class RunFolder(Run):
    """The folder of a run as process 0 trains it: locked, and every file in it is written by this
    program alone.

    Attributes:
        checkpoint: the checkpoint that a resumed run continues from, or None.
        earlier: the entries of environment.json, of earlier sessions.
        saver: writes the checkpoints.
    """

    def __init__(self, path: Path, placement: Placement = Placement()) -> None:  # noqa: B008  a frozen constant
        super().__init__(path)
        self.checkpoint: StateFile | None = None
        self.earlier: list[Record] = []
        self.saver = saver.Saver(
            self.checkpoints,
            keep=placement.keep,
            every_s=placement.save_every_s,
            fence=self.fence,
            link_every=placement.save_every,
        )
        self._lock: IO[str] | None = None
        self._token = ""

    @staticmethod
    def create(
        path: Path,
        recipe: Recipe,
        placement: Placement = Placement(),  # noqa: B008  a frozen constant
        numbered: bool = False,
        frozen: Tensors = _NONE,
    ) -> "RunFolder":
        """Make a new folder at `path`, and lock it; if it exists and the name is `numbered`, at the
        next free number.

        `frozen` is the layers before a head, which all checkpoints share.
        Raises: LockstepError if a run is there, or the folder cannot be written.
        """
        made = [path, *(parent for parent in path.parents if not parent.exists())]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    path.mkdir()  # atomic: of two programs, one succeeds
                    break
                except FileExistsError:
                    if not numbered:
                        refuse_existing(path)
                        break
                    path = fresh_path(path.parent, path.name.rpartition("-")[0])
            # Else a power failure could take the whole run, whose files are flushed.
            for new in made:
                flush(new.parent)
        except OSError as error:
            raise folder_error(path, error) from None
        folder = RunFolder(path, placement)
        with folder._locked():
            if is_begun(path):  # Another program trained here since the last check.
                raise _exists(path)
            folder.write("recipe.json", recipe.model_dump(mode="json"))
            statefile.keep_frozen(folder.checkpoints, frozen, folder.fence)
        return folder

    @staticmethod
    def resume(
        path: Path,
        placement: Placement = Placement(),  # noqa: B008  a frozen constant
        frozen: Tensors = _NONE,
    ) -> "RunFolder":
        """Lock the run at `path`, and read its newest valid checkpoint. Raises: LockstepError.

        The `frozen` layers replace those of the run if they are damaged or missing.
        """
        Run.open(path)
        folder = RunFolder(path, placement)
        with folder._locked():
            statefile.keep_frozen(folder.checkpoints, frozen, folder.fence)
            folder.checkpoint = statefile.newest_verified(folder.checkpoints, folder.last_step)
            if folder.checkpoint is None:
                logger.warning(f"{path} has no checkpoint, so it starts again at its first step")
            folder.earlier = folder.sessions()
        return folder

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other programs from writing here until `close`, until an error in the context, or
        until this one ends.

        Raises: LockstepError if another program holds the lock, or the folder cannot be written.
        """
        try:
            self._lock = os.fdopen(open_to_write(self.path / ".lock"), "r+")
            # Perhaps `eval --watch` only tests the lock now, and frees it at once.
            if is_held(self.path):
                time.sleep(0.1)
            lock_file(self._lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._token = uuid.uuid4().hex
            self._lock.write(self._token)
            self._lock.truncate()  # which flushes first
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise LockstepError(
                    f"another program is training in {self.path}: wait for it to end", ENVIRONMENT
                ) from None
            if isinstance(error, OSError):
                raise folder_error(self.path, error) from None
            raise

    def fence(self) -> None:
        """Flush the metrics, so that no checkpoint and no model is on the disk before the rows of
        its steps.

        On the hosts of a network file system, a lock may not keep out the other hosts. A process
        that was cut off from its run then finds the token of the program that has taken over.
        Raises: LockstepError if another program has locked the run since this one did; OSError if
            that is unknown.
        """
        # Rows that cannot be written are lost, but no checkpoint is.
        with contextlib.suppress(OSError):
            require_own(self.metrics_path)
            flush(self.metrics_path)
            flush(self.path)
        if (self.path / ".lock").read_bytes() != self._token.encode():
            raise LockstepError(
                f"another program has continued {self.path}, so this one ends and writes nothing "
                f"more there",
                ENVIRONMENT,
            )

    def write(self, name: str, record: Any) -> None:
        """Replace the JSON file `name` atomically. A number that is not finite becomes null."""
        text = json.dumps(finite(record), indent=1, allow_nan=False) + "\n"
        replace(self.path / name, text.encode())

    def begin(self, step: int, session: Record, evaluation: bool) -> None:
        """Record the `session` that continues after `step` updates, and delete what it will repeat.

        That is: later checkpoints, metrics of later steps, and of the `evaluation` after `step`
        updates if it is due. Damaged lines, as the last one of a killed run, go too.
        """
        saver.clear_ahead(self.checkpoints, step)
        remove_abandoned(self.path)
        if lines := read_lines(self.metrics_path):
            damaged, kept = list[str](), list[bytes]()
            for number, line in enumerate(lines, start=1):
                row = metrics_row(line)
                if row is None:
                    damaged.append(str(number))
                elif row["step"] < step + (row["kind"] == "evaluation" and not evaluation):
                    kept.append(line + b"\n")
            if damaged:
                logger.warning(
                    f"{self.metrics_path}: damaged and deleted: line {', '.join(damaged)}"
                )
            replace(self.metrics_path, b"".join(kept))
        self.write("environment.json", [*self.earlier, {"step": step, **session}])

    def finish(self, result: Record, tensors: Tensors, metadata: Record) -> None:
        """Write model.safetensors, and then result.json, which completes the run."""
        statefile.write(self.model, statefile.copied(tensors), metadata, self.fence)
        self.write("result.json", result)

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and allow other programs to write here."""
        self.saver.wait()
        if self._lock is not None:
            self._lock.close()


def folder_error(path: Path, error: OSError) -> LockstepError:
    """Return the error for a run's folder `path` that cannot be written."""
    return LockstepError(
        f"cannot write the run folder {path}: {error.strerror or error}. Give a folder that you "
        f"can write in as {option('runs', 'DIR')}",
        ENVIRONMENT,
    )


def is_begun(path: Path) -> bool:
    """Return whether anything is at `path` but the folder of a program that ended before it wrote
    recipe.json.
    """
    if not path.is_dir() or path.is_symlink():
        return os.path.lexists(path)
    return any(not member.name.startswith(".") for member in path.iterdir())


def refuse_existing(path: Path) -> None:
    """Raise a LockstepError if a run, or anything else, is at `path`, or a program is making
    one.
    """
    if os.path.lexists(path) and (is_begun(path) or is_held(path)):
        raise _exists(path)


def _exists(path: Path) -> LockstepError:
    return LockstepError(
        f"{path} exists, and a run is never overwritten: continue it with "
        f"{option('resume', True)}, or choose another {option('name')} than {path.name}"
    )


def fresh_path(runs: Path, stem: str) -> Path:
    """Return the first of runs/<stem>-1, -2, ... that does not exist."""
    return next(
        path
        for number in itertools.count(1)
        # a link to nothing is in the way too
        if not os.path.lexists(path := runs / f"{stem}-{number}")
    )
