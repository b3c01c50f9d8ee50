"""The file of a classifier: its weights, and all that using them needs."""

import json
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lockstep.files import flush, share
from lockstep.run.session import Session


def save_classifier(path: Path, session: Session, weights: str | None = None) -> None:
    """Write the classifier: float32 weights by name, and what is needed to use them in the metadata, as JSON.

    `weights` is "ema", "raw" or None for the ones that make the classifier. A file at `path` is replaced.
    One metadata key, `lockstep`: safetensors writes several in no fixed order.
    Raises: OSError, with the file at `path` as it was.
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
    }
    tensors: dict[str, Tensor] = {**parameters, **state.buffers}
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        save_file({k: t.detach().cpu().clone() for k, t in tensors.items()}, temporary, {"lockstep": json.dumps(facts)})
        share(temporary)
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise error if isinstance(error, OSError) else OSError(str(error)) from error
