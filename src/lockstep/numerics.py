"""Training's only writer of torch's global flags, of thread counts, and of the variables that
decide them.

The number of threads changes low-order bits (a sum split over two threads rounds differently), so
it is part of the recipe. It must be in the environment before torch is imported: a thread pool
ignores later changes.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

from lockstep import hardware

# What has the flag, its name, and its value. The name is that of an attribute, or of functions
# after get_ and set_.
Flag = tuple[Any, str, Any]

_lock = Lock()
_users = 0  # of `own_flags`
_before: list[Flag] = []  # the flags of the program before them


def environment(threads: int) -> dict[str, str]:
    """Return the environment variables under which a process computes with exactly `threads`
    threads.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_THREAD_LIMIT": str(2**31 - 1),  # A lower one divides sums among fewer threads.
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # Without a fixed code branch, MKL may choose one by the alignment of a buffer. Its STRICT
        # branches, which also give one result on any number of threads, take up to a third longer;
        # here the recipe has that number.
        "MKL_CBWR": _mkl_branch(),
        # cuBLAS is deterministic only with a fixed workspace that is set before its first call.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # Pages of 2 MiB for large tensors save about 5% of the time of `cifar10`, and change no
        # bit.
        "THP_MEM_ALLOC_ENABLE": "1",
        # Tensors stay in the heap of the C library (glibc). To give their memory back and take new
        # pages at every step would cost up to an eighth of the time of `mnist`. This changes no
        # bit, too.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    }


def prepare(threads: int) -> None:
    """Set the variables `environment(threads)` in this process. Call this before torch is
    imported.
    """
    os.environ.update(environment(threads))


def configure(threads: int, exact: bool) -> None:
    """Set torch's global flags: the thread count; in exact mode deterministic algorithms and no
    autotuning.
    """
    import torch

    torch.set_num_threads(threads)
    _write(_flags(exact))


@contextmanager
def own_flags(threads: int, exact: bool) -> Iterator[None]:
    """Compute with the flags and the thread count of `configure`, and `without_modes`, in a program
    of others, whose flags are as they were after the context.

    Several threads may be in the context, each once. They share it, as torch's flags belong to the
    whole process; only the thread count belongs to each thread.
    """
    global _users
    import torch

    flags = [(torch, "num_threads", threads), *_flags(exact)]
    with _lock:
        if not _users:
            _before[:] = [(owner, name, _read(owner, name)) for owner, name, _ in flags]
        _users += 1
        _write(flags)
    try:
        with without_modes():
            yield
    finally:
        with _lock:
            _users -= 1
            # A thread that began within the context has the count of the context, so the count
            # that is restored is the program's and not the thread's own.
            _write(_before[: 1 if _users else None])


@contextmanager
def without_modes() -> Iterator[None]:
    """Compute outside the autocast, the inference mode and the `torch.no_grad()` that a calling
    program may have entered in this thread. Worker processes have none.
    """
    import torch

    with (
        torch.inference_mode(False),  # which also ends torch.no_grad()
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


def _flags(exact: bool) -> list[Flag]:
    """Return torch's flags."""
    import torch

    backends: Any = torch.backends
    # Torch has two names for each precision. To write one by its older name also writes others, so
    # these come last.
    precisions = [
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.mkldnn.matmul,
        backends.mkldnn.conv,
    ]
    return [
        # use_deterministic_algorithms() would set the same, and import torch.compile's settings,
        # which takes a second.
        (torch, "deterministic_debug_mode", 2 if exact else 0),
        (torch, "float32_matmul_precision", "highest"),
        # Filling every new tensor with NaN costs a pass over memory, and no code here reads
        # uninitialised memory.
        (torch.utils.deterministic, "fill_uninitialized_memory", False),
        (backends.cudnn, "benchmark", not exact),
        (backends.cudnn, "deterministic", exact),
        (backends.cudnn, "allow_tf32", False),
        *((one, "fp32_precision", "ieee") for one in precisions),
    ]


def _read(owner: Any, name: str) -> Any:
    """Return the value of a flag; None if torch refuses to read a precision by its older name."""
    try:
        return getattr(owner, f"get_{name}", partial(getattr, owner, name))()
    except RuntimeError:
        return None


def _write(flags: list[Flag]) -> None:
    for owner, name, value in flags:
        if value is not None and _read(owner, name) != value:
            getattr(owner, f"set_{name}", partial(setattr, owner, name))(value)


def workers(threads: int) -> int:
    """Return how many threads keep this process's cores busy, if each computes with `threads`."""
    # Two: one decodes an image, and one computes.
    return max(2, hardware.cores() // threads)


def pool(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads, each of which computes with torch's number of threads in this
    program.
    """
    import torch

    # A new thread computes with all cores of the machine until torch looks the number up in it.
    return ThreadPoolExecutor(count, name, torch.get_num_threads)


def _mkl_branch() -> str:
    flags = hardware.cpu()["flags"].split()
    if "avx512f" in flags:
        return "AVX512"
    return "AVX2" if "avx2" in flags else "COMPATIBLE"
