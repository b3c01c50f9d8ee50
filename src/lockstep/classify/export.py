"""From a classifier to a file that needs no Lockstep."""

import contextlib
import copy
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from timeit import timeit
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.classify import runtimes
from lockstep.classify.classifier import Classifier
from lockstep.classify.formats import Format
from lockstep.config.recipe import Recipe
from lockstep.core.evaluation import classify
from lockstep.core.task import task_of
from lockstep.errors import DATA, ENVIRONMENT, USAGE, LockstepError, printable
from lockstep.files import Record, finite, open_to_read, read_bytes
from lockstep.head.outliers import NEIGHBOUR, Outliers
from lockstep.pages import verdict
from lockstep.pictures import decode
from lockstep.text import size

MAX_BYTES = 1 << 31  # of an exported file, a limit of all formats

_TIMED = 50  # images
_OPERATOR = re.compile(r"(?:op='|operator[ :]+|OpOverload\()'?([A-Za-z_]\w*(?:::|\.)\w+)")


def exported(
    classifier: Classifier,
    form: Format,
    opset: int | None = None,
    images: NDArray[np.uint8] | None = None,
) -> Any:
    """Return the model that `form` makes of the graph of `classifier`, in the operators of ONNX's
    set `opset`. With `images` of training, it is quantized.

    Raises: LockstepError if the network cannot be exported, or is too large.
    """
    weights = sum(tensor.nbytes for tensor in classifier.module.state_dict().values())
    if weights >= MAX_BYTES:
        raise LockstepError(
            f"an exported file holds less than {size(MAX_BYTES)}, and the weights take "
            f"{size(weights)}: export a smaller network"
        )
    graph = Graph(classifier.recipe, classifier.module, classifier.confidence.outliers).eval()
    with torch.no_grad(), exporting(classifier):
        # else constants that are computed once are the exporter's fake tensors from here on
        graph(torch.zeros(1, *classifier.image_shape, dtype=torch.uint8))
        model = form.made(graph, classifier.image_shape, opset)
        return model if images is None else form.quantized(model, images)


def answers_of(classifier: Classifier) -> Record:
    """Return the metadata of an exported file that turn its outputs into answers."""
    confidence, outliers = classifier.confidence, classifier.confidence.outliers
    return {
        "classes": list(classifier.classes),
        "image_shape": list(classifier.image_shape),
        "decoding": classifier.decoding._asdict(),
        "multi_label": classifier.recipe.multi_label,
        "thresholds": confidence.found_from,
        "confident_from": finite(confidence.confident_from),
        "familiar_from": outliers and float(outliers.threshold),
    }


def script() -> str:
    """Return a program that uses an exported file without Lockstep: modules of this package, in one
    file.
    """
    documentation, code = Path(__file__).with_name("standalone.py").read_text().split('"""\n', 1)
    own: list[Any] = [LockstepError, printable, open_to_read, read_bytes, decode, verdict, runtimes]
    parts = [
        "import errno\nimport io\nimport os\nimport stat\nfrom pathlib import Path\n",
        f"USAGE, DATA, ENVIRONMENT = {USAGE}, {DATA}, {ENVIRONMENT}",
        *map(inspect.getsource, own),
        code,
    ]
    text = "\n\n\n".join([f'{documentation}"""', *map(str.strip, parts)])
    return (
        re.sub(r"\n{4,}", "\n\n\n", re.sub(r"^from lockstep\..* import .*\n", "", text, flags=re.M))
        + "\n"
    )


def in_float32(classifier: Classifier) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Return the function that Lockstep computes in an exported file's precision, of images of the
    network's size.
    """
    graph = Graph(classifier.recipe, classifier.module).eval()

    @torch.no_grad()
    def compute(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        probabilities: NDArray[np.float32] = graph(torch.from_numpy(images)).numpy()
        return probabilities

    return compute


def in_batches(
    compute: Callable[[NDArray[np.uint8]], NDArray[Any]],
    images: NDArray[np.uint8],
    size: int,
    advance: Callable[[int], None],
) -> NDArray[Any]:
    """Return what `compute` returns for `images`, `size` at a time. Tell `advance` of each
    batch.
    """
    parts = []
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        parts.append(compute(batch))
        advance(len(batch))
    return np.concatenate(parts)


def pace(compute: runtimes.Compute, images: NDArray[np.uint8]) -> float:
    """Return the median time that `compute` takes for one of `images`, in milliseconds."""
    alone = images[:_TIMED, None]
    return 1e3 * median(timeit(partial(compute, image), number=1) for image in alone)


@contextlib.contextmanager
def exporting(classifier: Classifier) -> Iterator[None]:
    """Silence the notes of exporters and runtimes, which are for those who write them. Turn what
    they raise into a LockstepError that names the operator, or else the reason.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            yield
    except LockstepError:
        raise
    except Exception as error:
        causes: list[BaseException] = [error]
        while cause := causes[-1].__cause__:
            causes.append(cause)
        texts = [str(cause) for cause in causes]
        operator = _OPERATOR.search("\n".join(texts))
        reason = next(filter(None, texts[-1].splitlines()), repr(error))
        if operator:
            reason = f"operator {operator[1]}"
        raise LockstepError(
            f"model {classifier.recipe.model} cannot be exported: {reason}. Use operators that "
            "torch.export knows, without branches on values, or use model.safetensors",
            DATA,
        ) from None
    finally:
        logging.disable(level)


class Graph(nn.Module):
    """Maps images uint8 [N, height, width, C] to probabilities float32 [N, classes].

    The preprocessing and the views are those of an evaluation.
    """

    references: Tensor | None  # features of training images, [features, n]

    def __init__(
        self, recipe: Recipe, network: nn.Module, outliers: Outliers | None = None
    ) -> None:
        """Take over `network`, whose recipe is `recipe`."""
        super().__init__()
        self._recipe = graph_recipe(recipe)
        self._task = task_of(recipe)
        self.network = network
        references = outliers.references.float().T.contiguous() if outliers else None
        self.register_buffer("references", references)
        if outliers:
            self.head = network.get_submodule(str(recipe.head))
            tensors = [*network.parameters(), *network.buffers()]
            # with the same tensors
            self.network = copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})
            self.network.set_submodule(str(recipe.head), nn.Identity())

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the probabilities of `images`, and their similarity to training images if the file
        can tell it.
        """
        if self.references is None:
            logits, _ = classify(self._recipe, self.network, images, torch.ones(0))
            return self._task.shares(logits)
        features = list[Tensor]()

        def network(view: Tensor) -> Tensor:
            features.append(self.network(view))
            logits: Tensor = self.head(features[-1])
            return logits

        logits, _ = classify(self._recipe, network, images, torch.ones(0))
        first = nn.functional.normalize(features[0])  # of the images as they are
        similarity = first @ self.references
        # Not by topk: LiteRT cannot sort.
        numbers = torch.arange(similarity.shape[1])
        for _ in range(NEIGHBOUR - 1):
            nearest = similarity.argmax(1, keepdim=True)
            similarity = similarity.masked_fill(numbers == nearest, -1)
        return self._task.shares(logits), similarity.amax(1)


def graph_recipe(recipe: Recipe) -> Recipe:
    """Return `recipe` as a graph computes it: whole, in float32, and each image in the same views.

    The setting flip-translate-unsure chooses the images of a batch that get further views; in a
    graph all get them.
    """
    return recipe.replace(
        head=None,
        decay_factors=(),
        precision="float32",
        arithmetic="native",
        test_time_augmentation=recipe.test_time_augmentation.removesuffix("-unsure"),
    )
