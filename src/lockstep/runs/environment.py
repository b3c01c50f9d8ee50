"""The environment that a run computes in: everything besides the recipe that decides its bits."""

import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch

from lockstep import hardware, numerics
from lockstep.settings import dotted

_LIBRARIES = {"onednn": r"MKL-DNN v([\w.]+)", "mkl": r"Math Kernel Library Version ([\w.]+)"}
_VARIABLES = re.compile(r"(ONEDNN|DNNL|MKL|OMP|OPENBLAS|CUBLAS|CUDNN)_\w+|ATEN_CPU_CAPABILITY|NVIDIA_TF32_OVERRIDE")


def fingerprint(device: torch.device, decoder: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """Return everything besides the recipe that decides a run's bits. Equal bits are promised only if all is equal.

    `decoder` is the versions of the image decoder, if the dataset is decoded from image files.
    """
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.processor(),
        "cpu": hardware.cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **({"gpu": _gpu(device)} if device.type == "cuda" else {}),
        "environment": {key: os.environ.get(key) for key in sorted({*numerics.environment(1), *deciding(os.environ)})},
        "versions": {
            "lockstep": version("lockstep"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            **{name: _library_version(pattern) for name, pattern in _LIBRARIES.items()},
            **(decoder or {}),
        },
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return `entry: before -> after` for each entry that differs between two fingerprints.

    An entry that only one of them has is ignored, as a newer release may record more; but an environment variable
    that only one has counts.
    """
    old, new = dotted(before), dotted(after)
    names = [name for name in {**new, **old} if name.startswith("environment.") or (name in old and name in new)]
    return [f"{name}: {old.get(name)} -> {new.get(name)}" for name in names if old.get(name) != new.get(name)]


def deciding(variables: Iterable[str]) -> list[str]:
    """Return those of the environment `variables` that choose instructions, threads or settings of a library."""
    return [name for name in variables if _VARIABLES.fullmatch(name)]


def _library_version(pattern: str) -> str | None:
    match = re.search(pattern, torch.__config__.show())
    return match[1] if match else None


def _gpu(device: torch.device) -> dict[str, Any]:
    """Return architecture and libraries of a CUDA device."""
    try:
        driver: str | None = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        driver = None
    return {
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "multiprocessors": torch.cuda.get_device_properties(device).multi_processor_count,
        "cuda": torch.version.cuda,  # cuBLAS is part of CUDA
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "driver": driver,
    }
