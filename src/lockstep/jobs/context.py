"""Context: what a job's function gets besides its spec, in each process. Needs no torch at import time."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from signal import Signals
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from lockstep.core.monitor import Monitor

if TYPE_CHECKING:
    import torch

    from lockstep.core.group import Group


class Output(NamedTuple):
    """What process 0 prints.

    quiet: True for errors only. lines_to_stderr: True to leave stdout to the caller, for a record as JSON.
    """

    quiet: bool = False
    lines_to_stderr: bool = False

    @property
    def lines(self) -> IO[str] | None:
        """Return the stream for the lines of a run, or None."""
        return None if self.quiet else sys.stderr if self.lines_to_stderr else sys.stdout

    @property
    def progress(self) -> IO[str] | None:
        """Return the stream for the progress of other work, or None."""
        return None if self.quiet else sys.stderr


_SILENT = Output(quiet=True)


def _alone() -> "Group":
    from lockstep.core.group import Alone

    return Alone()


def _cpu() -> "torch.device":
    import torch

    return torch.device("cpu")


@dataclass
class Context:
    """This process among those of a job, and its connections to the program that started it.

    Attributes:
        output: what process 0 prints.
        monitor: learns what this process does.
        tell: gives something to the launcher at once, in process 0: ("run", its folder) or ("record", a record). The
            record that the job returns follows by itself.
        stop: returns the signal that this process was sent to stop, or None.
        loading_guard: entered while the dataset is read, which may take long: a signal then ends the process at once.
        group: the processes, and how they exchange tensors and bytes.
        device: what this process computes on.
        local: this process's number on its host.
    """

    output: Output = _SILENT
    monitor: Monitor = field(default_factory=Monitor)
    tell: Callable[[str, Any], None] = lambda kind, value: None
    stop: Callable[[], Signals | None] = lambda: None
    loading_guard: Callable[[], AbstractContextManager[None]] = nullcontext
    group: "Group" = field(default_factory=_alone)
    device: "torch.device" = field(default_factory=_cpu)
    local: int = 0

    @property
    def first(self) -> bool:
        """Return whether this is process 0, which alone writes and shows anything."""
        return self.group.process == 0
