"""Context: what a job's function gets besides its spec, in each process."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import IO, Any

import torch

from lockstep.core.group import Alone, Group
from lockstep.core.monitor import Monitor


@dataclass(frozen=True)
class Display:
    """Where process 0 shows the progress of a job.

    Attributes:
        stream: receives the lines of a run; None shows nothing.
        columns: columns of a line that is redrawn on `stream`, for a program that relays it to a notebook or a
            terminal; None lets the stream decide.
        progress: receives the progress of other work; None shows none.
    """

    stream: IO[str] | None = None
    columns: int | None = None
    progress: IO[str] | None = None


@dataclass
class Context:
    """This process among those of a job, and its connections to the program that started it.

    Attributes:
        group: the processes, and how they exchange tensors and bytes.
        device: what this process computes on.
        monitor: learns what this process does.
        stop: returns the signal that this process was sent to stop, or None.
        display: where progress is shown, in process 0.
        emit: gives a record to the caller at once, in process 0. The record that the job returns follows by itself.
        on_run_created: receives the run's folder, in process 0.
        loading_guard: entered while the dataset is read, which may take long: a signal then ends the process at once.
        local: this process's number on its host.
    """

    group: Group = field(default_factory=Alone)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    monitor: Monitor = field(default_factory=Monitor)
    stop: Callable[[], Signals | None] = lambda: None
    display: Display = Display()
    emit: Callable[[Mapping[str, Any]], None] = lambda record: None
    on_run_created: Callable[[Path], None] = lambda path: None
    loading_guard: Callable[[], AbstractContextManager[None]] = nullcontext
    local: int = 0

    @property
    def first(self) -> bool:
        """Return whether this is process 0, which alone writes and shows anything."""
        return self.group.process == 0
