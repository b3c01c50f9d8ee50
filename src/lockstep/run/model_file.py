"""model.safetensors: a classifier's weights, and everything needed to use them."""

import json
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lockstep.files import flush, share
from lockstep.run.session import Session
from lockstep.run.tensors_file import SHA256, contents_sha256


def save_model(path: Path, session: Session, weights: str | None = None) -> None:
    """Write the classifier: float32 weights by name; the metadata key `lockstep` is JSON with everything else.

    `weights` is "ema", "raw", or None for those of the classifier. An existing file at `path` is replaced.
    Raises: OSError; the file at `path` is then unchanged.
    """
    recipe, state = session.recipe, session.state
    weights = weights or ("ema" if state.ema is not None else "raw")
    parameters = state.ema if weights == "ema" else state.parameters
    assert parameters is not None
    facts = {
        "model": recipe.model,
        "model_options": recipe.model_options,
        "classes": session.splits["train"].classes,
        "image_shape": list(session.splits["train"].images.shape[1:]),
        "preprocessing": recipe.augmentation.model_dump(mode="json"),
        "test_views": recipe.test_views,
        "weights": weights,
        "recipe_digest": recipe.digest(),
        "recipe": recipe.model_dump(mode="json"),
        "model_source": session.model_source,
    }
    tensors: dict[str, Tensor] = {**parameters, **state.buffers}
    facts[SHA256] = contents_sha256(facts, tensors)
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
