"""model.safetensors: a classifier's weights, and everything needed to use them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lockstep.files import flush, share
from lockstep.runs.tensors import SHA256, contents_sha256


def save_model(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write the classifier: float32 `tensors` by name; the metadata key `lockstep` is JSON of the `facts`.

    An existing file at `path` is replaced. Raises: OSError; the file at `path` is then unchanged.
    """
    facts = {**facts, SHA256: contents_sha256(facts, tensors)}
    # One key only: safetensors writes several metadata keys in no fixed order.
    metadata = {"lockstep": json.dumps(facts)}
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        save_file({name: t.detach().cpu().clone() for name, t in tensors.items()}, temporary, metadata)
        share(temporary)
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
