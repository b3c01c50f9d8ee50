"""Profile: the operators of chosen steps, as a trace and as a table."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from lockstep.config.placement import Placement
from lockstep.errors import LockstepError


class Profile:
    """Records steps [first, end) of this process into `folder`.

    trace-FIRST-END.pt.trace.json is for https://ui.perfetto.dev, chrome://tracing and TensorBoard's profile plugin;
    operators-FIRST-END.txt is the table of the dearest operators. `note` is told where they are.
    """

    def __init__(self, folder: Path, steps: tuple[int, int], device: torch.device, note: Callable[[str], None]) -> None:
        self._folder, self._note = folder, note
        self._first, self._end = steps
        self._gpu = device.type == "cuda"
        self._profiler: profile | None = None

    def before(self, step: int) -> None:
        """`step` is the next to be computed, and nothing comes in between."""
        if step == self._first:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
            self._profiler = profile(activities=activities, acc_events=True)
            self._profiler.start()

    def after(self, steps: int) -> None:
        """So many steps are done, and nothing else was since."""
        if steps == self._end:
            self.stop()

    def stop(self) -> None:
        """Write what was recorded and is not written yet, if anything: also when the run ends in between."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        stem = f"{self._first}-{self._end}"
        order = "self_device_time_total" if self._gpu else "self_cpu_time_total"
        try:
            self._folder.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(self._folder / f"trace-{stem}.pt.trace.json"))
            table = profiler.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=60)
            (self._folder / f"operators-{stem}.txt").write_text(table)
        except (OSError, RuntimeError) as error:
            self._note(f"no profile: cannot write in {self._folder}: {error}. Training goes on")
            return
        self._note(f"profile of steps {self._first} to {self._end - 1}: {self._folder}")


def check_profile(placement: Placement, first: int, steps: int) -> None:
    """Raise a LockstepError if the steps to profile are not among those to come: `first` to `steps` - 1."""
    if placement.profile is None:
        return
    begin, end = placement.profile
    if begin < first or end > steps:
        raise LockstepError(
            f"--profile steps={begin}:{end}: this run computes steps {first} to {steps - 1}, so choose "
            f"{first} <= FIRST < END <= {steps}"
        )
