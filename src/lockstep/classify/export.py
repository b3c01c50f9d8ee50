"""From a classifier to an ONNX file, which needs no Lockstep."""

import contextlib
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.classify.graph import Graph, graph_recipe
from lockstep.classify.predict import Classifier
from lockstep.core.evaluate import classify
from lockstep.errors import DATA, ENVIRONMENT, LockstepError
from lockstep.words import extra, size

Compute = Callable[[NDArray[np.uint8]], NDArray[np.floating]]  # images [n, H, W, C] -> probabilities [n, classes]

MAX_BYTES = 1 << 31  # of an ONNX file, a limit of its format
METADATA = "lockstep"  # the name of the facts in an exported file

_BATCH_VALUES = 1 << 22
_EXAMPLE = (2, 37, 41)  # images, height, width: of an example that the exporter traces. Each may differ later.
_OPERATOR = re.compile(r"(?:op='|operator[ :]+|OpOverload\()'?([A-Za-z_]\w*(?:::|\.)\w+)")


def exported(classifier: Classifier, facts: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file that holds the graph of `classifier`, with `facts` as its metadata.

    Raises: LockstepError if a package is missing, the network cannot be exported, or it is too large.
    """
    weights = sum(tensor.nbytes for tensor in classifier.module.state_dict().values())
    if weights >= MAX_BYTES:
        raise LockstepError(f"an ONNX file holds less than {size(MAX_BYTES)}, and the weights take {size(weights)}")
    graph = Graph(classifier.recipe, classifier.module, classifier.image_shape).eval()
    dynamic = dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)
    example = (torch.zeros(*_EXAMPLE, classifier.image_shape[2], dtype=torch.uint8),)
    with _quiet(), torch.no_grad(), _refused(classifier):
        program = torch.export.export(graph, example, dynamic_shapes=(dynamic,))
        with _packages_named():
            import onnxscript  # noqa: F401  # which torch.onnx needs

            made = torch.onnx.export(
                program, example, dynamo=True, verbose=False, input_names=["images"], output_names=["probabilities"]
            )
        assert made is not None
        proto = made.model_proto  # made anew at each access
        for name, value in {METADATA: facts, "classes": facts["classes"]}.items():
            proto.metadata_props.add(key=name, value=json.dumps(value))
        content: bytes = proto.SerializeToString()
        return content


def loaded(content: bytes) -> Compute:
    """Return the function that onnxruntime computes from an exported file."""
    with _packages_named():
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    running = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: running.run(None, {"images": images})[0]


def in_float32(classifier: Classifier) -> Compute:
    """Return the function that Lockstep computes in an exported file's precision, of images of the network's size."""
    recipe, module = graph_recipe(classifier.recipe), classifier.module

    def run(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.no_grad():
            logits, _ = classify(recipe, module, torch.from_numpy(images), torch.ones(len(images), dtype=torch.bool))
            return logits.softmax(1).numpy()

    return run


def batch_of(shape: Sequence[int]) -> int:
    """Return how many images of `shape` a runtime is given at a time: it takes new memory for each large batch."""
    return max(1, _BATCH_VALUES // math.prod(shape))


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """Turn the lack of the packages for ONNX into a LockstepError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LockstepError(
            f"ONNX files need the package {error.name}, which is not installed: {extra('export')}", ENVIRONMENT
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes, which are for those who write it."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _refused(classifier: Classifier) -> Iterator[None]:
    """Turn what the exporter raises into a LockstepError that names the operator, or else torch's reason."""
    try:
        yield
    except LockstepError:
        raise
    except Exception as error:
        causes = [error]
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)  # type: ignore[arg-type]
        texts = [str(one) for one in causes]
        operator = next((found[1] for text in texts for found in [_OPERATOR.search(text)] if found), None)
        reason = f"operator {operator}" if operator else next(filter(None, texts[-1].splitlines()), repr(error))
        raise LockstepError(
            f"model {classifier.recipe.model} cannot be exported: {reason}. Use operators that torch.export knows, "
            "without branches on values, or use model.safetensors",
            DATA,
        ) from None
