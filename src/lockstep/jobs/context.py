"""Context: what a job's function receives besides its spec, in each process."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from signal import Signals
from typing import Any

import torch

from lockstep.core.group import Group
from lockstep.core.monitor import Monitor
from lockstep.jobs.specs import Output
from lockstep.messages import progress


@dataclass
class Context:
    """This process among those of a job, and its connections to the program that started it.

    Attributes:
        output: what process 0 prints.
        monitor: records what this process does.
        send: gives something to the launcher at once, in process 0: ("run", its folder) or
            ("record", a record). The record that the job returns follows by itself.
        stop: returns the signal that this process was sent to stop, or None.
        signals_end_at_once: signals_end_at_once(True) lets a signal end this process at once within
            the context, as it does by default. With False it waits until the job looks at `stop`,
            because there is something to save.
        group: the processes, and how they exchange tensors and bytes.
        device: what this process computes on.
        local: this process's number on its host.
    """

    output: Output = field(default_factory=lambda: Output(quiet=True))
    monitor: Monitor = field(default_factory=Monitor)
    send: Callable[[str, Any], None] = lambda kind, value: None
    stop: Callable[[], Signals | None] = lambda: None
    signals_end_at_once: Callable[[bool], AbstractContextManager[None]] = lambda yes: nullcontext()
    group: Group = field(default_factory=Group)
    device: torch.device = torch.device("cpu")  # noqa: RUF009  a constant
    local: int = 0

    @property
    def first(self) -> bool:
        """Return whether this is process 0, which alone writes and shows anything."""
        return self.group.process == 0

    def progress(
        self, description: str, total: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Show the progress of a job other than training with `messages.progress`: in process 0, on
        a terminal.
        """
        shown = self.first and not self.output.quiet and sys.stderr.isatty()
        return progress(description, total) if shown else nullcontext(lambda done: None)
