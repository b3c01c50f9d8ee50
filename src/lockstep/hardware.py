"""What this host has, and what this process uses of it. Needs no torch at import time, which takes
a second.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from lockstep.errors import ENVIRONMENT, LockstepError

if TYPE_CHECKING:
    import torch

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the network interface of this host alone

# in /dev: NVIDIA, NVIDIA's embedded boards, WSL, AMD
_GPU_DEVICES = ("nvidia*", "nvhost*", "dxg", "kfd")
# in torch's messages
_OF_ALLOCATOR = re.compile("allocate memory|Storage size calculation overflowed")
# on x86 and ARM
_ARITHMETIC_FLAG = re.compile(r"(avx|amx|sse4|sve|asimd)\w*|fma|f16c|sme\d?|bf16|i8mm")


def host() -> int:
    """Return a number that the processes of this host share: of its name, its start and its network
    namespace.
    """
    text = platform.node()
    with contextlib.suppress(OSError):
        text += Path("/proc/sys/kernel/random/boot_id").read_text()
        text += os.readlink("/proc/self/ns/net")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def has_loopback() -> bool:
    """Return whether the processes of this host can connect to each other: LOOPBACK has an
    address.
    """
    addresses = psutil.net_if_addrs().get(LOOPBACK, ())
    return any(address.family in (socket.AF_INET, socket.AF_INET6) for address in addresses)


def has_gpu_driver() -> bool:
    """Return False if this host certainly has no GPU driver. Needs no torch."""
    return any(next(Path("/dev").glob(name), None) for name in _GPU_DEVICES)


def gpus() -> int:
    """Return how many CUDA GPUs torch sees. Imports torch only if the host has a GPU driver."""
    if not has_gpu_driver():
        return 0
    import torch

    with warnings.catch_warnings(action="ignore"):  # `gpu_problem` tells what torch warns of.
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_problem() -> str | None:
    """Return why torch sees no GPU although a driver is here; None if it sees one, or
    CUDA_VISIBLE_DEVICES is set.
    """
    if not has_gpu_driver() or "CUDA_VISIBLE_DEVICES" in os.environ or gpus():
        return None
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "torch gives no reason"


def compute_capability() -> tuple[int, int]:
    """Return the compute capability of the first GPU that CUDA_VISIBLE_DEVICES shows, as (9, 0).

    NVIDIA's driver is asked itself, as torch would make a context, which holds 500 MB of the GPU's
    memory until this process ends.
    """
    device, major, minor = (ctypes.c_int() for _ in range(3))
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDeviceGet(ctypes.byref(device), 0)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        if driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) == 0:
            return major.value, minor.value
    import torch

    return torch.cuda.get_device_capability()


@contextlib.contextmanager
def memory_named(remedy: str) -> Iterator[None]:
    """Turn an error which says that a GPU or the host has too little memory into a LockstepError
    with the `remedy`.
    """
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).strip()
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or _OF_ALLOCATOR.search(text):
            problem = text.splitlines()[0] if text else "out of memory"
            raise LockstepError(f"too little memory ({problem}): {remedy}", ENVIRONMENT) from error
        raise


def cores() -> int:
    """Return how many CPU cores this process may use, by its affinity. A container's CPU quota does
    not count.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the CPU's model name, as the system gives it."""
    return cpuinfo("model name") or platform.processor() or "unknown CPU"


def cpu() -> dict[str, str]:
    """Return the CPU's properties by which kernels choose instructions and block sizes: model,
    flags and caches.
    """
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    flags = (cpuinfo("flags") or cpuinfo("Features")).split()  # x86, ARM
    return {
        "model": "/".join(cpuinfo(key) or "?" for key in ("cpu family", "model", "stepping")),
        "flags": " ".join(sorted(flag for flag in flags if _ARITHMETIC_FLAG.fullmatch(flag))),
        "caches": " ".join(path.read_text().strip() for path in sizes),
    }


def cpuinfo(key: str) -> str:
    """Return what Linux states of the first CPU as `key`; "" where it is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def memory_bytes(device: "torch.device") -> int:
    """Return the memory that this process holds: of tensors on a GPU, or all resident memory on a
    CPU.
    """
    import torch

    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def peak_memory_bytes(device: "torch.device") -> int:
    """Return the most memory that this process has held, counted as in `memory_bytes`."""
    import resource

    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError, ValueError):
        # On Linux, ru_maxrss of a program also counts the memory of the program that started it.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
