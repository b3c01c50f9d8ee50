"""The classifier in an ONNX file: it decodes and ranks as every classifier, and onnxruntime computes."""

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.config.recipe import Recipe
from lockstep.errors import DATA, LockstepError
from lockstep.inference.classifier import Classifier, _classes_and_shape, _Weights
from lockstep.inference.graph import in_batches
from lockstep.inference.onnx_file import opened
from lockstep.settings import validated


class OnnxClassifier(Classifier):
    """A classifier without a torch module. Its results are those of the run up to rounding."""

    def __init__(self, path: Path) -> None:
        """Open the file at `path`. Raises: LockstepError."""
        self._session, facts = opened(path)
        self.recipe, self.device, self.origin = validated(Recipe, facts["recipe"]), torch.device("cpu"), path
        self._weights = _Weights(path, self.recipe, facts, {}, {})
        self.classes, self.image_shape = _classes_and_shape(self._weights)
        self._threads, self._prefix, self._unlike = torch.get_num_threads(), None, None

    def _probabilities(self, images: NDArray[np.uint8], size: int) -> Tensor:
        run = self._session.run
        try:
            found = torch.from_numpy(in_batches(lambda part: run(None, {"images": part})[0], images)).double()
        except Exception as error:  # onnxruntime has no class for its errors, and a file may hold any graph
            problem = next(iter(str(error).splitlines()), repr(error))
            raise LockstepError(f"onnxruntime cannot compute the graph of {self.origin}: {problem}", DATA) from None
        if found.shape != (len(images), len(self.classes)):
            raise self._weights.damaged(f"its graph gives {list(found.shape)} values for {len(images)} images")
        return found.masked_fill(~found.isfinite().all(1, keepdim=True), math.nan)

    @property
    def module(self) -> nn.Module:
        """Raise a LockstepError: the file has no torch module."""
        raise LockstepError(f"{self.origin} has no torch module: load the run, or model.safetensors")
