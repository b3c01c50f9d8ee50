"""The only writer of global torch flags, thread counts and the environment that decides them.

Threads change bits (a sum split over two threads is another sum), so their number is part of the recipe, and it
must be in the environment *before* torch is imported: a thread pool that has started, or a thread that torch
did not start, ignores later changes.
"""

import math
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_PROCESS = psutil.Process()
_DRIVERS = ("nvidia*", "nvhost*", "dxg", "kfd")  # in /dev: NVIDIA's, its boards', those under Windows, AMD's
# Flags of instructions that compute, on x86 and ARM.
_ARITHMETIC = re.compile(r"(avx|amx|sse4|sve|asimd)\w*|fma|f16c|sme\d?|bf16|i8mm")


def environment(threads: int) -> dict[str, str]:
    """The environment variables under which a process computes with exactly `threads` threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # Without a fixed code branch MKL may choose another one by the alignment of a buffer.
        "MKL_CBWR": _mkl_branch(),
        # cuBLAS is deterministic only with a fixed workspace, fixed before its first call.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # Large tensors in pages of 2 MiB, where the system has them: some 5 % of the time of `cifar10`, and no bit.
        "THP_MEM_ALLOC_ENABLE": "1",
    }


_SILENT = {
    "TORCH_CPP_LOG_LEVEL": "FATAL",  # Gloo's and the rendezvous' words on a peer that left: we report that, once
    "KINETO_LOG_LEVEL": "99",  # the profiler's on starting and stopping
}


def prepare(threads: int) -> None:
    """Put `environment(threads)` into this process, and keep libraries silent. Call it before torch is imported."""
    os.environ.update(environment(threads) | _SILENT)


def configure(threads: int, exact: bool) -> None:
    """Set torch's global flags: fixed threads; in exact mode deterministic algorithms and no autotuning."""
    import torch

    torch.set_num_threads(threads)
    # What use_deterministic_algorithms() sets, without torch.compile's settings, whose import takes a second.
    torch.set_deterministic_debug_mode("error" if exact else "default")
    # Filling every fresh tensor with NaN costs a pass over memory and helps only those who read it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def configure_compiler(exact: bool) -> None:
    """Set the flags of torch.compile: in exact mode no choice by a measured time, and an error where it would give up.

    It imports the compiler, which takes a second.
    """
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    inductor.deterministic = exact
    # After so many graphs it would go on without compiling, and silently: with other bits, and in a resumed run later.
    dynamo.recompile_limit = 64
    dynamo.fail_on_recompile_limit_hit = True


def has_gpu_driver() -> bool:
    """Whether this host may have a GPU. Needs no torch, whose import takes a second."""
    return sys.platform != "linux" or any(found for name in _DRIVERS for found in Path("/dev").glob(name))


def cores() -> int:
    """CPU cores this process may use: its affinity, and of a container's CPU quota the whole cores; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, int(min(quota(), allowed))))


def quota(groups: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> float:
    """The CPU seconds a second that control groups allow this process, or infinity.

    Reads cpu.max of version 2 and cpu.cfs_quota_us of version 1, of the process's own group and all above it.
    """
    try:
        lines = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return math.inf
    found = [math.inf]
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if not controllers:
            root, read = mounts, _quota_v2
        elif "cpu" in controllers.split(","):
            root, read = mounts / "cpu", _quota_v1
        else:
            continue
        inner = root / path.lstrip("/")
        found += [read(group) for group in (inner, *inner.parents) if group.is_relative_to(root)]
    return min(found)


def _quota_v2(group: Path) -> float:
    try:
        limit, period = (group / "cpu.max").read_text().split()
        return math.inf if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return math.inf


def _quota_v1(group: Path) -> float:
    try:
        limit, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return limit / period if limit > 0 else math.inf
    except (OSError, ValueError):
        return math.inf


def memory_bytes(device: "torch.device") -> int:
    """What this process holds on `device`: GPU memory of tensors, or on CPU its resident memory."""
    import torch

    return torch.cuda.memory_allocated(device) if device.type == "cuda" else int(_PROCESS.memory_info().rss)


def cpu() -> dict[str, str]:
    """What decides which instructions and block sizes kernels choose: family, model, stepping, flags and caches."""
    flags = sorted(flag for flag in (_cpuinfo("flags") or _cpuinfo("Features")).split() if _ARITHMETIC.fullmatch(flag))
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return {
        "model": "/".join(_cpuinfo(key) or "?" for key in ("cpu family", "model", "stepping")),
        "flags": " ".join(flags),
        "caches": " ".join(path.read_text().strip() for path in sizes),
    }


class GpuUtilisation:
    """How busy the GPU `device` is. The driver is asked at most once a second, as an answer takes it some time.

    Not yet run on a GPU.
    """

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._percent: float | None = None
        self._next: float | None = 0.0  # when to ask again, by time.monotonic(); None: never

    def __call__(self) -> float | None:
        """The percentage of the last sampling period, a second or less, in which the GPU computed.

        None where that is not known: without NVIDIA's driver and the package nvidia-ml-py.
        """
        import torch

        now = time.monotonic()
        if self._next is not None and now >= self._next:
            try:
                self._percent, self._next = float(torch.cuda.utilization(self._device)), now + 1.0
            except Exception:  # torch's, or the package's own errors, which have no base in common
                self._percent = self._next = None
        return self._percent


def processor() -> str:
    """The CPU's model name, as the system gives it."""
    return _cpuinfo("model name") or "unknown CPU"


def _mkl_branch() -> str:
    flags = _cpuinfo("flags").split()
    if "avx512f" in flags:
        return "AVX512,STRICT"
    return "AVX2,STRICT" if "avx2" in flags else "COMPATIBLE"


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")
