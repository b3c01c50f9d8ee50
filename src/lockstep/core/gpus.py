"""How busy the GPUs of process 0's host are."""

import contextlib
from collections.abc import Mapping

import torch

from lockstep.errors import option
from lockstep.messages import logger

# of training between two readings: a utilisation is that of the last second, or of less
_APART_S = 1.0
_READINGS = 10  # after which a GPU is judged
_IDLE = 0.2  # mean utilisation below which it idles


class Gpus:
    """Reads how busy GPUs are, and warns of those that idle.

    Attributes:
        mean: the mean utilisation of each GPU by number, in [0, 1], if it is known.
    """

    def __init__(self, processes: Mapping[int, int]) -> None:
        """Read the GPUs of these numbers, each with one of the `processes` that compute on it."""
        self.mean: dict[int, float] = {}
        self._processes = processes
        self._uses: dict[int, dict[str, float]] = {}
        self._readings = 0
        self._read_s = 0.0

    def read(self, seconds: float) -> Mapping[int, Mapping[str, float]]:
        """Return `StepEvent.gpus` after `seconds` of training. Within a second nothing is read
        again.
        """
        if seconds - self._read_s < _APART_S:
            return self._uses
        self._read_s = seconds
        self._readings += 1
        for number, process in self._processes.items():
            if use := _use(number):
                self._uses = {**self._uses, number: use}
                mean = self.mean.get(number, 0.0)
                mean += (use["utilization"] - mean) / self._readings
                self.mean[number] = mean
                if self._readings == _READINGS and mean < _IDLE:
                    logger.warning(
                        f"GPU {number} (process {process} of its host) idles: so far it computed "
                        f"{mean:.0%} of the time. Give it more work: a larger {option('batch')}, "
                        f"which makes another recipe, or fewer {option('processes')}"
                    )
        return self._uses


def _use(number: int) -> dict[str, float]:
    """Return how all programs use a GPU; {} if that is not known, as without the package
    nvidia-ml-py.
    """
    # The driver's library has errors of its own, and no run needs its answer.
    with contextlib.suppress(Exception):
        utilization = torch.cuda.utilization(number) / 100
        return {"utilization": utilization, "memory_bytes": torch.cuda.device_memory_used(number)}
    return {}
