"""Training's only writer of torch's global flags, of thread counts, and of the variables that decide them.

The number of threads changes low-order bits (a sum split over two threads rounds differently), so it is part of the
recipe. It must be in the environment before torch is imported: a thread pool ignores later changes.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from lockstep import hardware


def environment(threads: int) -> dict[str, str]:
    """Return the environment variables under which a process computes with exactly `threads` threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # Without a fixed code branch, MKL may choose one by the alignment of a buffer. Its STRICT branches, which also
        # give one result on any number of threads, take up to a third longer; here the recipe has that number.
        "MKL_CBWR": _mkl_branch(),
        # cuBLAS is deterministic only with a fixed workspace that is set before its first call.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # Pages of 2 MiB for large tensors save about 5 % of the time of `cifar10`, and change no bit.
        "THP_MEM_ALLOC_ENABLE": "1",
        # Tensors stay in the heap of the C library (glibc). To give their memory back and take new pages at every step
        # would cost up to an eighth of the time of `mnist`. This changes no bit, too.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    }


def prepare(threads: int) -> None:
    """Set the variables `environment(threads)` in this process. Call this before torch is imported."""
    os.environ.update(environment(threads))


def configure(threads: int, exact: bool) -> None:
    """Set torch's global flags: the thread count; in exact mode deterministic algorithms and no autotuning."""
    import torch

    torch.set_num_threads(threads)
    # use_deterministic_algorithms() would set the same, and import torch.compile's settings, which takes a second.
    torch.set_deterministic_debug_mode("error" if exact else "default")
    # Filling every new tensor with NaN costs a pass over memory, and no code here reads uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def workers() -> int:
    """Return how many threads keep this process's cores busy, if each computes with torch's number of threads."""
    import torch

    return max(2, hardware.cores() // torch.get_num_threads())  # Two: one decodes an image, and one computes.


def pool(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of threads, each of which computes with torch's number of threads in this program."""
    import torch

    # A new thread computes with all cores of the machine until torch looks the number up in it.
    return ThreadPoolExecutor(count, name, torch.get_num_threads)


def _mkl_branch() -> str:
    flags = hardware.cpu()["flags"].split()
    if "avx512f" in flags:
        return "AVX512"
    return "AVX2" if "avx2" in flags else "COMPATIBLE"
