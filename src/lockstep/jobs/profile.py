"""Profile: the operators of chosen steps, as a trace and as a table."""

from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from lockstep.config.placement import Placement
from lockstep.errors import LockstepError
from lockstep.messages import logger


class Profile:
    """Records the operators of steps [first, end) of this process, and writes them into `folder`.

    trace-FIRST-END.pt.trace.json opens in https://ui.perfetto.dev, chrome://tracing and TensorBoard's profile plugin.
    operators-FIRST-END.txt is a table of the most expensive operators. A message says where they are.
    """

    def __init__(self, folder: Path, steps: tuple[int, int], device: torch.device) -> None:
        self._folder = folder
        self._first, self._end = steps
        self._gpu = device.type == "cuda"
        self._profiler: profile | None = None

    def before(self, step: int) -> None:
        """Start to record if `step` is the first one to record. Call it immediately before the step."""
        if step == self._first:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
            threads = _ExperimentalConfig(profile_all_threads=True)  # one of them exchanges, see core/group.py
            self._profiler = profile(activities=activities, acc_events=True, experimental_config=threads)
            self._profiler.start()

    def after(self, steps: int) -> None:
        """Stop to record if `steps` steps are done and these are all. Call it immediately after the step."""
        if steps == self._end:
            self.stop()

    def stop(self) -> None:
        """Write what was recorded so far, if anything. A run that ends early calls this too."""
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
            logger.warning(f"no profile: cannot write in {self._folder}: {error}. Training continues")
            return
        logger.warning(f"profile of steps {self._first} to {self._end - 1}: {self._folder}")


def check_profile(placement: Placement, first: int, steps: int) -> None:
    """Raise a LockstepError unless the run computes all steps to profile; it computes `first` to `steps` - 1."""
    if placement.profile is None:
        return
    begin, end = placement.profile
    if begin < first or end > steps:
        raise LockstepError(
            f"--profile steps={begin}:{end}: this run computes steps {first} to {steps - 1}, so choose "
            f"{first} <= FIRST < END <= {steps}"
        )
