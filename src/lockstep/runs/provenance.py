"""Provenance: everything besides the recipe that decides a run's bits, and how it differs from what
was recorded.

environment.json has an entry for each session, and each checkpoint has the digests of data and
source.
"""

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lockstep import __version__, hardware, numerics
from lockstep.config.recipe import Recipe
from lockstep.errors import printable
from lockstep.files import Record, sha256
from lockstep.messages import logger
from lockstep.schema import dotted

_LIBRARIES = {"onednn": r"MKL-DNN v([\w.]+)", "mkl": r"Math Kernel Library Version ([\w.]+)"}
_VARIABLES = re.compile(
    r"(ONEDNN|DNNL|MKL|OMP|OPENBLAS|CUBLAS|CUDNN)_\w+|ATEN_CPU_CAPABILITY|NVIDIA_TF32_OVERRIDE"
)

# else "environment"
_KINDS = {"data_sha256": "data", "classes": "classes", "probe": "probe", "decoder": "decoder"}
_PACKAGES = ("torch", "numpy", "safetensors", "pillow")
_OF_MODELS = ("timm", "torchvision")  # They count if the model's code has imported them.
# when a session began, where its files were, and what it recorded
_NOT_COMPARED = {"step", "data", "init", "placement", "hub"}
_SHA256_DIGITS = 8  # that a message shows

_PACKAGE = Path(__file__).resolve().parents[1]
# of this Python, and of other environments
_INSTALLED = re.compile(r"/lib/python3[^/]*/|/(site|dist)-packages/")


@dataclass(frozen=True)
class Difference:
    """An entry that is not what was recorded. Its text is `name: before -> after`, and is safe to
    print.
    """

    # "source" (of the user's code), "data", "classes", "probe", "decoder" or "environment"
    kind: str
    name: str  # of the entry: a source file, a split, or a dotted name as in versions.torch
    # before, after: the recorded value and the value now; None if there is none
    before: Any
    after: Any

    def __str__(self) -> str:
        before, after = self.before, self.after
        if self.kind in ("source", "data") or self.name.endswith("sha256"):
            before, after = (str(value or "none")[:_SHA256_DIGITS] for value in (before, after))
        return printable(f"{self.name}: {before} -> {after}")


def compare(recorded: Record, now: Record) -> list[Difference]:
    """Return how `now` differs from what was `recorded`: entries of environment.json, metadata of
    state files, or parts.

    What only one of them states is ignored; but an environment variable that only one has counts,
    and so does a source file. Changed source files come first.
    """
    common = [name for name in now if name in recorded and name not in _NOT_COMPARED]
    found = []
    if "model_source" in common:
        common.remove("model_source")
        before, after = recorded["model_source"], now["model_source"]
        both = before.keys() & after.keys()
        # If all files that both have are equal, so are their imports: one process has only imported
        # more of the folder.
        if not both or any(before[name] != after[name] for name in both):
            found = [
                Difference("source", name, before.get(name), after.get(name))
                for name in sorted({*before, *after})
            ]
    old, new = (dotted({name: entry[name] for name in common}) for entry in (recorded, now))
    for name in {**new, **old}:
        if name.startswith("environment.") or (name in old and name in new):
            entry, _, part = name.partition(".")
            kind = _KINDS.get(entry, "environment")
            found.append(
                Difference(kind, part if kind == "data" else name, old.get(name), new.get(name))
            )
    return [difference for difference in found if difference.before != difference.after]


def texts(differences: Iterable[Difference], *kinds: str) -> list[str]:
    """Return the texts of those `differences` that are of one of `kinds`."""
    return [str(difference) for difference in differences if difference.kind in kinds]


def warn_of_changes(recipe: Recipe, earlier: Sequence[Record], identity: Record) -> None:
    """Warn if a session with this `identity` computes differently from the last `earlier` one."""
    changes = compare(earlier[-1], identity) if earlier else []
    if source := texts(changes, "source"):
        logger.warning(
            f"the source of {describe_custom_code(recipe)} has changed: {'; '.join(source)}"
        )
    if texts(changes, "environment", "probe"):
        cause = "; ".join(texts(changes, "environment")) or "environment.json shows no cause"
        effect = "the probe is equal"
        if texts(changes, "probe"):
            effect = (
                "the arithmetic probe differs from the last session's, so later weights will differ"
            )
        elif texts(changes, "decoder"):
            effect = "the image decoder too, so pixels may differ"
        logger.warning(f"the environment has changed ({cause}): {effect}")


def is_mixed(earlier: Sequence[Record], identity: Record) -> bool:
    """Return whether sessions computed differently, so that no other run has the bits of this."""
    return any(texts(compare(entry, identity), "probe", "source", "decoder") for entry in earlier)


def fingerprint(device: torch.device, decoder: Mapping[str, str | None] | None = None) -> Record:
    """Return everything besides the recipe that decides a run's bits. Equal bits are promised only
    if all is equal.

    `decoder` is the versions of the image decoder, if the dataset is decoded from image files.
    """
    libraries = torch.__config__.show()
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else hardware.processor(),
        "cpu": hardware.cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **({"gpu": _gpu(device)} if device.type == "cuda" else {}),
        "environment": {
            key: os.environ.get(key)
            for key in sorted({*numerics.environment(1), *filter(_VARIABLES.fullmatch, os.environ)})
        },
        "versions": {
            **versions(),
            **{
                name: found[1]
                for name, pattern in _LIBRARIES.items()
                if (found := re.search(pattern, libraries))
            },
            **(decoder or {}),
        },
    }


def versions() -> dict[str, str]:
    """Return the versions of the code that trains, and the SHA-256 of Lockstep's own."""
    imported = {
        name: str(sys.modules[name].__version__) for name in _OF_MODELS if name in sys.modules
    }
    return {
        "python": platform.python_version(),
        "lockstep": __version__,
        **{name: version(name) for name in _PACKAGES},
        **imported,
        "lockstep_sha256": code_sha256(_PACKAGE),
    }


def releases() -> dict[str, str]:
    """Return `versions` without the parts that name a build, as +cpu. All processes of a run must
    have the same.
    """
    return {name: text.partition("+")[0] for name, text in versions().items()}


@cache
def code_sha256(package: Path) -> str:
    """Return the SHA-256, in hex, of the relative paths and contents of all Python files below
    `package`.

    An editable install and a wheel of one commit have the same.
    """
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    code = hashlib.sha256()
    for name in sorted(files):
        content = files[name].read_bytes()
        code.update(f"{name}\0{len(content)}\0".encode() + content)
    return code.hexdigest()


def sources(function: str) -> dict[str, str]:
    """Return the SHA-256 of each source file of the imported `package.module:function`; {} for a
    built-in name.

    The files are the function's module, and all modules of its folder or package that this process
    has imported. For an installed package it is the module alone: the package's version covers the
    rest.
    """
    name = function.partition(":")[0] if ":" in function else ""
    path = _file(sys.modules.get(name))
    if path is None:
        return {}
    root = path.parents[name.count(".") + (path.name == "__init__.py")]
    files = {path}
    if not _is_installed(path):
        found = {
            _file(module) for other, module in list(sys.modules.items()) if other != "__main__"
        }
        files |= {
            file for file in found if file and file.is_relative_to(root) and not _is_installed(file)
        }
    return {str(file.relative_to(root)): sha256(file) for file in sorted(files)}


def imported_code(function: str) -> Record:
    """Return all that the user's `package.module:function` may be made of: the SHA-256 of each
    source file of its package, and of no installed one, that this process has imported, and the
    versions of packages.
    """
    package = re.split("[.:]", function)[0]
    modules = [*sys.modules.items()]
    files = {
        file
        for name, module in modules
        if (file := _file(module)) and (name.split(".")[0] == package or not _is_installed(file))
    }
    versions = {name: str(vars(module).get("__version__")) for name, module in modules}
    return {
        "files": {str(file): sha256(file) for file in files},
        "versions": {name: text for name, text in versions.items() if "." not in name},
    }


def describe_custom_code(recipe: Recipe) -> str:
    """Return in words which code of the user the recipe names, as in "model mynet:build"."""
    return (
        " and ".join(f"{name} {value}" for name, value in recipe.custom_code.items())
        or f"model {recipe.model}"
    )


def _file(module: object) -> Path | None:
    """Return the file that `module` was imported from, without symbolic links, or None if it is not
    from a file.
    """
    # Some modules import others when an attribute is asked for.
    name = getattr(module, "__dict__", {}).get("__file__")
    return Path(os.path.realpath(name)) if isinstance(name, str) and os.path.isfile(name) else None


def _is_installed(file: Path) -> bool:
    """Return whether `file` is Lockstep's, the standard library's or an installed package's."""
    return file.is_relative_to(_PACKAGE) or bool(_INSTALLED.search(f"{file}"))


def _gpu(device: torch.device) -> Record:
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
        "triton": version("triton") if find_spec("triton") else None,
    }
