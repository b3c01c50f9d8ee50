"""Classifier: a trained network with its preprocessing and classes. It classifies an image as
evaluation does.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep import hardware, numerics
from lockstep.classify.inputs import Source, Sources, image_of, in_order, is_one, items
from lockstep.config.recipe import Recipe
from lockstep.core.backbone import Backbone
from lockstep.core.evaluation import classify
from lockstep.core.model import Model
from lockstep.core.state import classifier_weights, weights_sha256
from lockstep.core.task import task_of
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import given, near
from lockstep.head.activation import class_activation_map
from lockstep.head.confidence import Confidence
from lockstep.head.outliers import divided, every_view
from lockstep.pages.prediction import Prediction, prediction_of
from lockstep.pictures.decode import Decoding, decode_image
from lockstep.runs.run import Run
from lockstep.runs.statefile import StateFile, read, step_of
from lockstep.schema import validated

_MAX_IMAGE_VALUES = 1 << 24  # height * width * channels of one image
END_OTHERS = "end other programs"  # if there is too little memory


class Classifier:
    """A trained network with its preprocessing and its classes. `lockstep.load` makes one.

    Attributes:
        classes: The names of the classes, in order of label.
        recipe: The recipe that trained the network.
        image_shape: The (height, width, channels) that images have before preprocessing.
        device: The device that computes.
        origin: The file, or the folder of the checkpoint, that holds the weights.
        weights_sha256: The SHA-256 of the weights, as in result.json; None if a model file does not
            state it.
        thresholds: With multi-label data, the least probability of a found label for each class,
            float32 [classes]; else None.
        confidence: Tells which answers are confident, and which images are unfamiliar.

    Examples:
        >>> classifier = lockstep.load("runs/first")
        >>> for p in classifier.predict(["cat.jpg", "photos/"], top=3):
        ...     print(p.source, p.label, p.probability, p.top)
        >>> logits = classifier.module(classifier.preprocess("cat.jpg")[None])  # plain torch
    """

    def __init__(
        self, recipe: Recipe, file: StateFile, device: torch.device, confident: float = 0.95
    ) -> None:
        self.recipe, self.device, self.origin = recipe, device, file.path
        classes, shape = file.metadata.get("classes"), file.metadata.get("image_shape") or []
        if not classes or len(shape) != 3 or min(shape) < 1 or math.prod(shape) > _MAX_IMAGE_VALUES:
            raise _damaged(file, f"it states the classes {classes} and images of {shape}")
        self.classes: tuple[str, ...] = tuple(classes)
        self.image_shape: tuple[int, int, int] = tuple(shape)
        self.weights_sha256 = file.metadata.get("weights_sha256")
        self._tensors, _ = divided(file.tensors)
        # Portable arithmetic is many short operations. Threads that compete for Python's lock at
        # each of them are several times as slow as one thread.
        self._turn = Lock() if recipe.arithmetic == "portable" else nullcontext()
        if recipe.precision == "auto":
            raise _damaged(file, "its recipe does not fix the precision")
        model = self._build(recipe)
        model.to_device(device)
        self._network, self._backbone = model.network, model.backbone
        self._network.module.eval()
        try:
            self.confidence = Confidence(
                file.tensors, recipe, self._backbone, len(self.classes), confident
            )
        except ValueError as error:
            raise _damaged(file, error) from None
        least = self.confidence.found_from
        self.thresholds = None if least is None else torch.tensor(least, dtype=torch.float32)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.image_shape))
        return (
            f"<Classifier {self.origin}: {self.recipe.model}, {size}, {len(self.classes)} classes>"
        )

    def _build(self, recipe: Recipe) -> Model:
        """Return the trained model, on the CPU. Raises: LockstepError if the file is of another
        model.
        """
        try:
            return Model(recipe, self.image_shape, self.classes, self._tensors)
        except LockstepError as error:
            raise LockstepError(f"{self.origin}: {error}", error.code) from None

    @cached_property
    def module(self) -> nn.Module:
        """Return the network as a plain float32 torch.nn.Module on the CPU, in evaluation mode.

        It maps float32 images [n, C, h, w] from `preprocess` to logits [n, classes]. It is
        independent of the classifier: change it as you like.
        """
        return self._build(self.recipe).module.eval()

    def preprocess(self, image: Source) -> Tensor:
        """Return an image as the network's input, float32 [C, h, w], on the CPU.

        `image` is a path, a file that is open in mode "rb", its bytes, a Pillow image, or an array
        or tensor uint8 [H, W] or [H, W, C] (RGB, not OpenCV's BGR). It is brought to `image_shape`
        and then preprocessed as in evaluation.
        Raises: LockstepError if it cannot be read.
        """
        return self.recipe.augmentation.test(torch.from_numpy(self.pixels(image))[None])[0]

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path may be that of a folder
        self, sources: Source, top: int = 1, evidence: bool = False
    ) -> Prediction: ...

    @overload
    def predict(
        self, sources: Iterable[Source], top: int = 1, evidence: bool = False
    ) -> list[Prediction]: ...

    def predict(
        self, sources: Sources, top: int = 1, evidence: bool = False
    ) -> Prediction | list[Prediction]:
        """Classify one image or several.

        Args:
            sources: One image: the path of a file, a file that is open in mode "rb", its bytes, a
                Pillow image, or an array or tensor uint8 [H, W] or [H, W, C] in RGB (for an image
                that OpenCV has read, `image[..., ::-1]`). Or several: an iterable of these, a
                folder with its subfolders, or an array or tensor [N, H, W, C]. A type checker takes
                a single path or array for one image, so put a folder into a list: `["photos/"]`.
            top: How many of the most probable classes each prediction has.
            evidence: Whether each prediction has its evidence, which takes about as long again.

        Returns:
            The prediction of one image; or the predictions of several, in their order, and those of
            a folder sorted by name.

        Raises:
            LockstepError: The one image does not exist or cannot be read. Of several, such an image
                has a prediction with an `error`, and the others are classified. See also
                `predict_each`.

        Examples:
            >>> classifier.predict("cat.jpg").label
            >>> [p.label for p in classifier.predict(["cat.jpg", "photos/"])]
        """
        predictions = self.predict_each(sources, top, evidence)
        if not is_one(sources):
            return list(predictions)
        prediction = next(predictions)
        if prediction.error is not None:
            where = "the image" if isinstance(prediction.source, int) else prediction.source
            raise LockstepError(f"{where}: {prediction.error}", DATA)
        return prediction

    def predict_each(
        self, sources: Sources, top: int = 1, evidence: bool = False
    ) -> Iterator[Prediction]:
        """Classify images as `predict`, and yield the prediction of each as soon as it and those
        before it are there.

        An iterable is read a few images ahead, and may be endless. Each image is computed alone, so
        its prediction has the same bits beside any others. With
        test_time_augmentation=flip-translate-unsure, every image gets the further views, and not
        only a quarter of a batch. Several threads may call this at the same time.

        An image that cannot be read gives a prediction with an `error`, and the others go on.
        Raises: LockstepError if `top` is less than 1, `sources` is none of these, or an image needs
        more memory than there is.
        """
        if top < 1:
            raise LockstepError(f"top: got {top}: give 1 or more")

        def work(name: Path | int, image: Source | LockstepError) -> Prediction:
            try:
                if isinstance(image, LockstepError):
                    raise image
                pixels = self.pixels(image)
            except LockstepError as error:
                if error.code != DATA:  # too little memory
                    raise
                return Prediction(name, error=str(error))
            return self.predict_pixels(pixels, top, name, evidence)

        return in_order(items(sources), work, self.recipe.threads_per_tower)

    def predict_pixels(
        self, pixels: NDArray[np.uint8], top: int = 1, name: Path | int = 0, evidence: bool = False
    ) -> Prediction:
        """Return the prediction for what `pixels` returned, computed in this thread; `name` is its
        source.

        Raises: LockstepError for too little memory.
        """
        with self._computing(), self._turn, hardware.memory_named(END_OTHERS):
            inputs = self._inputs(pixels)
            row = self._probabilities(inputs)
            prediction = prediction_of(
                name,
                row[0],
                self.classes,
                top,
                self.confidence.found_from,
                self.confidence.confident_from,
                bool(self.confidence.unfamiliar(inputs)),
            )
            if evidence:
                image = torch.from_numpy(pixels)[None]
                shown = [self.classes.index(label) for label in prediction.explained]
                maps = class_activation_map(self._backbone, self._network, image, shown)
                prediction = prediction.with_evidence(maps)
            return prediction

    def features(self, sources: Sources) -> NDArray[np.float32]:
        """Return the features of images: the input of the network's last linear layer.

        They are those of the image as it is, without test-time augmentation. Each image is computed
        alone, so its features have the same bits beside any others.

        Args:
            sources: One image or several, as for `predict`.

        Returns:
            The features, float32 [n, D], in the order of the images; n is 1 for one image.

        Raises:
            LockstepError: An image does not exist or cannot be read, or the network does not end in
                a linear layer.

        Examples:
            >>> features = classifier.features("photos/")  # for a search, a plot or a clustering
            >>> features /= np.linalg.norm(features, axis=1, keepdims=True)
            >>> nearest = (features @ features[0]).argsort()[::-1]
        """
        with self._computing():
            layers = self._before_last

        def work(name: Path | int, image: Source | LockstepError) -> NDArray[np.float32]:
            try:
                if isinstance(image, LockstepError):
                    raise image
                pixels = torch.from_numpy(self.pixels(image))[None]
            except LockstepError as error:
                where = f"image {name}" if isinstance(name, int) else name
                raise LockstepError(f"{where}: {error}", error.code) from None
            with self._computing(), self._turn, hardware.memory_named(END_OTHERS):
                return every_view(layers(pixels))[0, 0].numpy()

        rows = [*in_order(items(sources), work, self.recipe.threads_per_tower)]
        return np.array(rows, np.float32).reshape(-1, layers.output[0])

    @cached_property
    def _before_last(self) -> Backbone:
        """Return the layers before the last linear one. Raises: LockstepError if it is not last."""
        if self._backbone is not None:
            return self._backbone
        module = self._build(self.recipe).module
        linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise LockstepError(f"model {self.recipe.model} has no linear layer: use `module`")
        # Without the checks of a head that is trained, as on its augmentation.
        recipe = self.recipe.model_copy(update={"head": linear[-1]})
        return Backbone(recipe, module, self._network.shape, self.device)

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the probabilities [n, classes] of images [n, H, W, C] of `image_shape`; NaN if
        they are not finite.

        They are classified together, as a batch of an evaluation.
        """

        def inputs_of(_: Path | int, image: Any) -> Tensor:
            with self._computing():
                return self._inputs(image)

        inputs = torch.cat([*in_order(items(images), inputs_of, self.recipe.threads_per_tower)])
        with self._computing():
            # How many images are moved depends on the size of the batch.
            whole = (
                self.recipe.eval_batch
                if "unsure" in self.recipe.test_time_augmentation
                else len(images)
            )
            rows = torch.arange(max(len(images), whole))
            counted = rows < len(images)
            inputs = inputs[rows.clamp(max=len(images) - 1)]
            return self._probabilities(inputs, counted.to(self.device))[: len(images)].numpy()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute as an evaluation does, whatever flags, threads and modes of torch the program
        has.
        """
        with numerics.own_flags(self.recipe.threads_per_tower, self.recipe.exact), torch.no_grad():
            yield

    def _probabilities(self, inputs: Tensor, counted: Tensor | None = None) -> Tensor:
        logits, _ = classify(self.recipe, self._network, inputs.to(self.device), counted)
        return task_of(self.recipe).probabilities(logits).cpu()

    def _inputs(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return what the recipe's `input` takes for one image: [1, H, W, C], or its features for a
        head.
        """
        image = torch.from_numpy(pixels)[None]
        return image if self._backbone is None else self._backbone(image)

    @property
    def decoding(self) -> Decoding:
        """Return what brings a picture to `image_shape`."""
        height, _, channels = self.image_shape
        return Decoding(height, channels == 1, self.recipe.fit, self.recipe.interpolation)

    def pixels(self, image: Source) -> NDArray[np.uint8]:
        """Return an image brought to `image_shape`, uint8 [H, W, C]: as it is before preprocessing.

        `image` is as for `preprocess`. Several threads may call this at the same time.
        Raises: LockstepError if it cannot be read.
        """
        height, width, channels = self.image_shape
        source = image_of(image)
        if isinstance(source, np.ndarray) and source.dtype == np.uint8:
            if source.shape == self.image_shape:
                return np.array(source)  # torch takes no negative strides
            if source.shape == (height, width) and channels == 1:
                return np.array(source)[..., None]
        if height != width or channels not in (1, 3):
            raise LockstepError(
                f"the network takes images of {height} x {width} pixels and {channels} channels, "
                f"and files are only "
                f"brought to squares in grey or RGB: give arrays uint8 {list(self.image_shape)}",
                DATA,
            )
        return decode_image(source, self.decoding)


def run_of(source: str | Path | Run) -> tuple[Run | None, int | None]:
    """Return the run that `source` is or names, and the step if it is a checkpoint; (None, None)
    for a file.
    """
    if isinstance(source, Run):
        return source, None
    path = given(source)
    if path.is_file():
        step = step_of(path) if path.parent.name == "checkpoints" else None
        return (None, None) if step is None else (Run.open(path.parent.parent), step)
    if not path.exists():
        give = f"{near(path)}give the folder of a run, as in runs/digits-1, or a model file"
        raise LockstepError(f"{path} does not exist: {give}", DATA)
    return Run.open(path), None


def weights_of(
    source: str | Path | Run, which: int | Literal["best"] | None = None
) -> tuple[Recipe, StateFile]:
    """Return the recipe and the weights of a run, a checkpoint or a model file.

    The weights are those that the run is evaluated by: of a complete run the final ones, of a
    checkpoint the averaged ones, if there are any. Raises: LockstepError.
    """
    run, step = run_of(source)
    if run is None:
        path = given(str(source))
        if which is not None:
            raise LockstepError(
                f"{option('checkpoint')} is for runs, and {path} is a file: leave it out"
            )
        if path.suffix.lower() in {".onnx", ".tflite", ".xml", ".bin"}:
            raise LockstepError(
                f"{path} is an exported file, which is for other programs (docs/deploy.md): give "
                f"the run, or its model.safetensors"
            )
        file = read(path)
        if not isinstance(file.metadata.get("recipe"), dict):
            raise _damaged(file, "it does not contain its recipe")
        return validated(Recipe, file.metadata["recipe"]), file
    which = which if step is None else step
    if which is None and run.model.is_file():
        file = read(run.model)
    else:
        file = run.read_checkpoint(which)
        file = replace(
            file,
            tensors=classifier_weights(file.tensors),
            metadata=file.metadata | {"weights_sha256": weights_sha256(file.tensors)},
        )
    recipe = run.recipe()
    if file.metadata.get("recipe_digest") != recipe.digest():
        raise LockstepError(
            f"{file.path} was trained by another recipe than recipe.json states: restore the "
            f"run's own recipe.json"
        )
    return recipe, file


def _damaged(file: StateFile, problem: object) -> LockstepError:
    return LockstepError(f"{file.path} is damaged: {problem}", DATA)
