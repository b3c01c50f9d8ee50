"""Power loss: every state in which it may leave the disk of a run, at each moment of training.

What is not flushed may be lost, in any order. Of a file, each write since its last flush is there,
is absent (so zeros stand before a later write), or is cut short. A name in a folder has any of the
inodes that it had since the folder's last flush, or none, whatever the other names have.

All combinations are built, except of what no reader tells apart:

- `log.txt`, `.lock` and the temporary files of `files.replace`, whose names begin with a dot: they
  are there or not, but with one content, which would fail each test if anything read it.
- A write that is cut short is half there, or lacks its last byte, the end of a line. Before a later
  write it is absent: its line is damaged in either case.
- The order in which the saver's thread writes a checkpoint and the main thread appends rows to
  metrics.jsonl until the next save. The recorded run waits for each checkpoint. At each moment, all
  rows up to the next save count as written and not flushed. That includes each other order, since a
  row that is not flushed may be absent.
"""

import contextlib
import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests.survival.faults import watched

from lockstep.runs import saver
from lockstep.runs.run_folder import RunFolder
from lockstep.runs.statefile import step_of

# The content of each path, None for a folder.
State = frozenset[tuple[str, bytes | None]]
RUN = "runs/x"
ROWS = f"{RUN}/metrics.jsonl"
# How much of a run there is: nothing, recipe.json, a checkpoint's number of steps, or all.
NO_RUN, BEGUN, COMPLETE = -2, -1, 1000


class Seen(NamedTuple):
    """An inode that programs see at a path, and its content, None for a folder."""

    inode: int
    content: bytes | None


class Moment(NamedTuple):
    """What is about to be done with a path, how much of the run must not be lost any more, and what
    programs see.
    """

    operation: str
    path: str
    promised: int
    seen: dict[str, Seen]


def is_unread(path: str) -> bool:
    return os.path.basename(path).startswith((".", "log.txt"))


def seen_in(root: Path) -> dict[str, Seen]:
    """Return what programs see below `root`. The lock alone is written in place: it counts as
    empty.
    """
    return {
        str(path.relative_to(root)): Seen(
            path.stat().st_ino,
            None if path.is_dir() else path.read_bytes() * (path.name != ".lock"),
        )
        for path in root.rglob("*")
    }


@contextlib.contextmanager
def recorded(root: Path, there: int = NO_RUN) -> Iterator[list[Moment]]:
    """Return a list of the moments in which this process changes files below `root`, where `there`
    says how much of a run is on the disk.
    """
    moments, promised = [], [there]
    start = saver.Saver.save

    def begins(operation, path, *_):
        changed = Path(str(path))
        if changed.is_relative_to(root):
            name = str(changed.relative_to(root))
            moments.append(Moment(operation, name, promised[-1], seen_in(root)))

    def promising(function, promise):
        def done(*arguments):
            result = function(*arguments)
            promised.append(promise(result))
            return result

        return done

    def save(self, *arguments):
        begins("save", root)
        start(self, *arguments)
        self.wait()

    with (
        watched(begins),
        mock.patch.object(saver.Saver, "save", save),
        mock.patch.object(saver, "save", promising(saver.save, step_of)),
        mock.patch.object(RunFolder, "create", promising(RunFolder.create, lambda _: BEGUN)),
        mock.patch.object(RunFolder, "finish", promising(RunFolder.finish, lambda _: COMPLETE)),
    ):
        yield moments
        begins("end", root)


class Inode:
    """A folder, or a file: what was flushed of it, and each write since."""

    def __init__(self, is_folder: bool) -> None:
        self.is_folder = is_folder
        self.flushed, self.writes = b"", []

    def write(self, content: bytes) -> None:
        known = self.flushed + b"".join(self.writes)
        assert content.startswith(known), "no file is written but at its end"
        if content != known:
            self.writes.append(content.removeprefix(known))

    def contents(self) -> set[bytes]:
        """Return what a power loss may leave."""
        found = {self.flushed}
        for number, last in enumerate(self.writes):
            parts = [{part, bytes(len(part))} for part in self.writes[:number]]
            parts.append({last, last[:-1], last[: len(last) // 2], bytes(len(last))})
            found |= {self.flushed + b"".join(these) for these in itertools.product(*parts)}
        return found


class Disk:
    """The inodes that each path has had since its folder was flushed, the oldest first. None stands
    for no file.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[Inode | None]] = {}
        self._inodes: dict[int, Inode] = {}

    def see(self, seen: dict[str, Seen]) -> None:
        """Take what programs see as what is in memory."""
        for path in {*self._values, *seen}:
            inode, values = None, self._values.setdefault(path, [None])
            if path in seen:
                number, content = seen[path]
                inode = self._inodes.setdefault(number, Inode(content is None))
                inode.write(content or b"")
            if inode is not values[-1]:
                values.append(inode)
        # A number that nothing has any more may be given to another file.
        self._inodes = {number: self._inodes[number] for number, _ in seen.values()}

    def flush(self, path: str) -> None:
        inode = self._values.get(path, [None])[-1]
        if inode and not inode.is_folder:
            inode.flushed, inode.writes = inode.flushed + b"".join(inode.writes), []
            return
        for name, values in self._values.items():
            if str(Path(name).parent) == path:
                del values[:-1]

    def states(self, folder: str = ".") -> set[State]:
        """Return what a power loss may leave in a folder."""
        members = [
            {state for inode in values for state in self._states_of(path, inode)}
            for path, values in self._values.items()
            if str(Path(path).parent) == folder
        ]
        return {frozenset().union(*these) for these in itertools.product(*members)}

    def _states_of(self, path: str, inode: Inode | None) -> set[State]:
        if inode is None:
            return {frozenset()}
        if inode.is_folder:
            return {state | {(path, None)} for state in self.states(path)}
        contents = {b"\0never read"} if is_unread(path) else inode.contents()
        return {frozenset({(path, content)}) for content in contents}


def states(moments: Sequence[Moment]) -> dict[State, int]:
    """Return every state that a power loss at one of the `moments` may leave, and how much of the
    run must be there.
    """
    disk, promised = Disk(), {}
    disk.see(moments[0].seen)
    for path in (".", *moments[0].seen):  # The first operation finds all of it on the disk.
        disk.flush(path)
    for number, moment in enumerate(moments, 1):
        disk.see(moment.seen)
        now = copy.deepcopy(disk)
        for rows in _later_rows(moment, moments[number:]):
            now.see({**moment.seen, ROWS: rows})
        for state in now.states():
            promised[state] = max(promised.get(state, NO_RUN), moment.promised)
        if moment.operation == "fsync":
            disk.flush(moment.path)
    return promised


def _later_rows(moment: Moment, later: Sequence[Moment]) -> Iterator[Seen]:
    """Return metrics.jsonl as it is until the next save, or until a resume writes it anew."""
    for other in later:
        rows = other.seen.get(ROWS)
        if rows:
            if rows.inode != moment.seen.get(ROWS, rows).inode:
                return
            yield rows
        if other.operation == "save":
            return
