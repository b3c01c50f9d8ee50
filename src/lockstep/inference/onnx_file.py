"""A classifier in an ONNX file that `lockstep export` wrote. The file holds a graph, and no code."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.files import read_bytes
from lockstep.words import extra

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

METADATA = "lockstep"  # the name of the facts in an exported file
MAX_BYTES = 1 << 31  # of an ONNX file, a limit of its format


@contextlib.contextmanager
def missing() -> Iterator[None]:
    """Turn the lack of the packages for ONNX into a LockstepError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LockstepError(
            f"ONNX files need the package {error.name}, which is not installed: {extra('export')}", ENVIRONMENT
        ) from None


def session(content: bytes, threads: int = 0) -> "InferenceSession":
    """Return the session of onnxruntime for a file's `content`, on `threads` threads; 0: as many as torch has."""
    with missing():
        import onnxruntime
    if not threads:
        import torch

        threads = torch.get_num_threads()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4  # Its errors are raised too.
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def opened(path: Path, threads: int = 0) -> "tuple[InferenceSession, dict[str, Any]]":
    """Return the session and the facts of the file at `path`. Raises: LockstepError if Lockstep has not written it."""
    try:
        content = read_bytes(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise LockstepError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", DATA) from None
    try:
        running = session(content, threads)
        facts = json.loads(running.get_modelmeta().custom_metadata_map[METADATA])
    except LockstepError:
        raise
    except KeyError:
        raise LockstepError(
            f"{path} was not written by lockstep export: it has no metadata of Lockstep", DATA
        ) from None
    except Exception as error:  # onnxruntime has no class for its errors
        problem = next(iter(str(error).splitlines()), repr(error))
        raise LockstepError(f"{path} is no ONNX file, or is damaged: {problem}", DATA) from None
    if not isinstance(facts, dict) or not isinstance(facts.get("recipe"), dict):
        raise LockstepError(f"{path} is damaged: it does not contain its recipe", DATA)
    return running, facts
