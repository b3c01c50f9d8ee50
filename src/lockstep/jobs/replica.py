"""Replica: one process's data, model and state. All processes of a run hold the same."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep import hardware, numerics
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core.captured import obstacle
from lockstep.core.evaluation import Evaluation, Progress, evaluate
from lockstep.core.loop import Observer, updates
from lockstep.core.model import Model
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.core.vector import Requests
from lockstep.data import DATASETS, IMAGE_FOLDER, MEMORY, arrays, folder
from lockstep.data.dataset import Dataset, first_other_class
from lockstep.data.fetch import ensure
from lockstep.errors import DATA, LockstepError, option
from lockstep.head import confidence, outliers
from lockstep.head.activation import class_activation_map
from lockstep.head.confidence import Confidence
from lockstep.head.features import features_of
from lockstep.jobs.context import Context
from lockstep.jobs.weights import InitialWeights, load_initial_weights
from lockstep.kernels.portable import arithmetic
from lockstep.messages import logger
from lockstep.pictures.decode import decoder_versions
from lockstep.runs.provenance import fingerprint, sources
from lockstep.runs.statefile import metadata_if_valid
from lockstep.schema import load_object


class Replica:
    """The data, model and state of a run in one process.

    Attributes:
        recipe, placement, group, device: what the session was made with.
        bound: the steps of the run.
        reduction: adds the vectors of all towers.
        local_processes: how many of the processes are on this host.
        gpus: the number of each GPU on which these compute, with the number on this host of one
            that does; {} on CPUs.
        splits: the dataset's splits by name, on the CPU.
        initial_weights: what the model took from `placement.init`, or None if it names no file.
        network, state: the network in the recipe's precision, and the master state that trains it.
        parameter_count: number of values in all parameters that are trained.
        model_source: SHA-256 of each source file of the user's model and dataset; {} if both are
            built in.
        fingerprint: see `provenance.fingerprint`.
    """

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        ctx: Context,
        splits: dict[str, Dataset] | None = None,
    ) -> None:
        """Read the recipe's dataset, unless `splits` are given, and make the network and its
        initial state.

        Raises: LockstepError.
        """
        self.recipe, self.placement, self.group, self.device = (
            recipe,
            placement,
            ctx.group,
            ctx.device,
        )
        self._ctx = ctx
        ctx.monitor.use(ctx.device)
        self.reduction = Reduction(ctx.group, recipe.towers, placement.reduction)
        hosts = ctx.group.hosts()
        self.local_processes = hosts.count(hosts[ctx.group.process])
        numbers = (placement.gpus or range(self.local_processes))[: self.local_processes]
        self.gpus = (
            {number: local for local, number in enumerate(numbers)}
            if ctx.device.type == "cuda"
            else {}
        )
        self._readers = ctx.group.without_timeout()
        self.splits = splits_of(recipe, splits or self._read())
        train_set = self.splits["train"]
        self.bound = recipe.bind(len(train_set))
        model = Model(recipe, train_set.images.shape[1:], train_set.classes)
        model.fit(train_set)
        self.model_source = {**sources(recipe.dataset), **sources(recipe.model)}
        self.decoder = decoder_versions() if recipe.dataset == IMAGE_FOLDER else None
        self.fingerprint = fingerprint(ctx.device, self.decoder)
        self.seeded_state: State | None = None
        self.initial_weights = self._load_initial_weights(model)
        # A module of the user, imported by now, may have set torch's flags for itself.
        numerics.configure(recipe.threads_per_tower, recipe.exact)
        self.state = model.state(ctx.device)
        self.parameter_count = sum(p.numel() for p in self.state.parameters.values())
        model.to_device(ctx.device)
        self.network, self._backbone = model.network, model.backbone

    def _read(self) -> dict[str, Dataset]:
        """Read the splits. One process of a host downloads, indexes and decodes; then the others
        find the result.
        """
        with self._readers.in_turn(not self._ctx.local):
            return read_splits(self.recipe, self.placement)

    def _load_initial_weights(self, model: Model) -> InitialWeights | None:
        """Load the weights that the recipe starts from. They replace what was fitted to the
        training images.
        """
        recipe, path = self.recipe, self.placement.init
        if path is None:
            if recipe.head is not None:
                raise LockstepError(
                    f"head {recipe.head} is trained on what the layers before it compute, and "
                    f"these need trained "
                    f"weights: give their file or run as {option('init')}"
                )
            return None
        # A resumed session has no file to load, so the probe of every session takes the weights of
        # the seed.
        self.seeded_state = model.state(self.device)
        # A checkpoint of this recipe has the layers before the head; its head is not the one that
        # the run starts from.
        metadata = metadata_if_valid(path)
        if "step" in metadata and metadata["recipe_digest"] == recipe.digest():
            load_initial_weights(model.module, recipe.model, path, None)
            return None
        found = load_initial_weights(model.module, recipe.model, path, recipe.init_sha256)
        if not found.complete:
            logger.warning(f"{option('init', path)}: {found}")
        return found

    @cached_property
    def train_set(self) -> Dataset:
        """The training images on the device, or their features. All processes ask for them
        together.
        """
        return self.split("train")

    @cached_property
    def tower(self) -> Tower:
        """The tower of this process."""
        on_gpu = self.device.type == "cuda"
        return Tower(self.bound, self.network, as_graph=on_gpu and self.without_graphs is None)

    @property
    def without_graphs(self) -> str | None:
        """Return why towers on a GPU are computed kernel by kernel, in words; None if they are CUDA
        graphs.
        """
        if not self.placement.graphs:
            return f"the option {option('graphs', False)}"
        return obstacle(self.recipe, self.network.module)

    def updates(
        self, log: Observer, *, poll_flags: Callable[[], Requests] = Requests
    ) -> Generator[Requests]:
        """Train the state to the last step, as `core.loop.updates`."""
        return updates(
            self.train_set, self.tower, self.reduction, self.state, log, poll_flags=poll_flags
        )

    @property
    def data_sha256(self) -> dict[str, str]:
        """Return the SHA-256 of each split that training uses. A resumed run must find the same."""
        return {name: self.splits[name].sha256 for name in ("train", self.recipe.evaluated_split)}

    def require_same_data(self, run: Path, stated: Mapping[str, Any]) -> None:
        """Raise a LockstepError unless splits and classes are those that the `run` has `stated`."""
        where = f" in {self.placement.data}" if self.placement.data else ""
        for name, digest in self.data_sha256.items():
            if (stated.get("data_sha256") or {}).get(name, digest) != digest:
                raise LockstepError(
                    f"the {'training' if name == 'train' else name} data{where} is not what {run} "
                    f"was trained on (its "
                    f"sha256 differs): images were added, removed or changed since. Give the same "
                    f"as {option('data')}, "
                    f"or start a new run",
                    DATA,
                )
        self.require_same_classes(run, stated.get("classes"))

    def require_same_classes(self, run: Path, stated: Sequence[str] | None) -> None:
        """Raise a LockstepError unless the names of the classes are those that the `run` has
        `stated`, if any.
        """
        own = self.splits["train"].classes
        if other := first_other_class(stated or own, own):
            raise LockstepError(
                f"the classes are not those that {run} was trained on: label {other[0]} was "
                f"{other[1]} and is "
                f"{other[2]}. Give images of the same classes as {option('data')}, or start a new "
                f"run",
                DATA,
            )

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint and a model file state about the run."""
        train_set = self.splits["train"]
        return {
            "recipe_digest": self.recipe.digest(),
            "data_sha256": self.data_sha256,
            "model_source": self.model_source,
            "classes": train_set.classes,
            "image_shape": list(train_set.images.shape[1:]),
        }

    def model_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the metadata of the file of the classifier.

        That of a head can tell unlike images, and that of a linear one sure answers.
        """
        recipe, state = self.recipe, self.state
        tensors = {**state.frozen, **state.parameters_of(recipe.own_weights), **state.buffers}
        if self._backbone is not None:
            tensors |= confidence.confidence_tensors(self.bound, state, self.train_set)
            with arithmetic(recipe.arithmetic):
                tensors |= outliers.outlier_tensors(self.train_set)
        metadata = {
            "recipe": recipe.model_dump(mode="json"),
            "weights_sha256": state.weights_sha256(),
        }
        return tensors, {**self.metadata(), **metadata}

    def sure_answers(
        self, tensors: Mapping[str, Tensor], share: float, dataset: Dataset, probabilities: Tensor
    ) -> dict[str, Any] | None:
        """Return how many answers on `dataset` are sure and right, by the `tensors` of the model
        file; None if unknown.

        "least" are the least probabilities of sure answers. Raises: ValueError if the file is
        damaged.
        """
        features = self._backbone.shape[-1] // 4 if self._backbone else 0
        marks = Confidence(
            outliers.divided(tensors)[1],
            features,
            len(dataset.classes),
            share,
            self.recipe.balanced,
        )
        if marks.sure_from is None:
            return None
        sure = torch.tensor(
            [mark == "sure" for mark in marks(dataset.pixels(slice(None)).cpu(), probabilities)]
        )
        right = sure & (probabilities.argmax(1) == dataset.labels.cpu())
        least = sorted({one for one in marks.sure_from.tolist() if one <= 1})
        return {
            "share": share,
            "images": int(sure.sum()),
            "right": int(right.sum()),
            "least": least,
        }

    def split(self, name: str, examples: int | None = None) -> Dataset:
        """Return a split, or `examples` of it at even distances, on the device; for a recipe with
        `head` its features.

        All processes call this together. Raises: LockstepError if the split does not exist, or has
        fewer examples.
        """
        if name not in self.splits:
            raise LockstepError(
                f"dataset {self.recipe.dataset} has no split {name!r}: its splits are "
                f"{', '.join(self.splits)}"
            )
        dataset = self.splits[name]
        if examples is not None:
            if not 1 <= examples <= len(dataset):
                raise LockstepError(
                    f"{option('examples')}: got {examples}: give 1 to {len(dataset)}"
                )
            dataset = dataset.spread(examples)
        if self._backbone is None:
            return dataset.to(self.device)
        ctx = self._ctx
        key = json.dumps(
            [
                self.fingerprint,
                self.recipe.augmentation.model_dump(mode="json"),
                self.recipe.precision,
            ]
        )
        return features_of(
            self._backbone,
            dataset,
            self._readers,
            key,
            first_of_host=not ctx.local,
            threads=max(
                1, hardware.cores() // self.local_processes // self.recipe.threads_per_tower
            ),
        ).to(self.device)

    def evaluate(
        self,
        dataset: Dataset,
        weights: str,
        progress: Progress = lambda share: None,
        keep_logits: bool = False,
    ) -> Evaluation:
        """Evaluate the "ema" or "raw" weights."""
        parameters = self.state.parameters_of(weights)
        return evaluate(
            self.network, parameters, self.state.buffers, dataset, self.group, progress, keep_logits
        )

    def evidence(self, image: Tensor, label: int) -> Tensor | None:
        """Return the class activation map by the weights that were evaluated last; None without a
        head.
        """
        return (
            None
            if self._backbone is None
            else class_activation_map(self._backbone, self.network, image, label)
        )

    def evaluate_all(
        self, dataset: Dataset, progress: Progress = lambda share: None
    ) -> dict[str, Evaluation]:
        """Evaluate every kind of weights that the run has, for a head with logits. The classifier's
        come first.
        """
        kinds, results = dict.fromkeys((self.recipe.own_weights, "raw")), dict[str, Evaluation]()
        for kind in kinds:
            results[kind] = self.evaluate(
                dataset,
                kind,
                lambda share: progress((len(results) + share) / len(kinds)),
                self._backbone is not None,
            )
        return results


def splits_of(recipe: Recipe, splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Return `splits`, with "held-out", a part of "train", if the recipe holds out training images.

    Raises: LockstepError unless there is the split on which a run is evaluated.
    """
    train_set, name = splits["train"], recipe.evaluated_split
    if name in splits:
        return splits
    if recipe.held_out >= len(train_set):
        raise LockstepError(
            f"held_out: got {recipe.held_out}: the training set has {len(train_set)} images, so 0 "
            f"to "
            f"{len(train_set) - 1} are allowed"
        )
    if recipe.held_out:
        kept, held = train_set.held_out(recipe.held_out)
        return {**splits, "train": kept, "held-out": held}
    raise LockstepError(
        f"dataset {recipe.dataset} has no {name} split, on which the run is evaluated: its splits "
        f"are "
        f"{', '.join(splits)}. Add it, or hold out training images, as in "
        f"{option('settings', f'held_out={len(train_set) // 10}')}"
    )


def read_splits(
    recipe: Recipe, placement: Placement, classes: Sequence[str] | None = None
) -> dict[str, Dataset]:
    """Return the splits of the recipe's dataset, by name, on the CPU. A dataset that is missing is
    downloaded.

    With `classes`, all images of a folder are one split, see `photos.survey_folder`. Raises:
    LockstepError.
    """
    try:
        if recipe.dataset == IMAGE_FOLDER:
            assert recipe.image_px is not None
            found = recipe.survey(placement.data, classes)
            return folder.load(found, image_px=recipe.image_px, grey=recipe.grey, fit=recipe.fit)
        if recipe.dataset == MEMORY:
            assert recipe.dataset_sha256 is not None
            if placement.data is not None:
                raise LockstepError(
                    f"{option('data', placement.data)}: the dataset was given as data=, so leave "
                    f"it out"
                )
            return arrays.load_stored(recipe.dataset_sha256)
        if "dataset" in recipe.custom_code:
            return arrays.load_function(recipe.dataset, placement.data, recipe.image_px)
        ensure(recipe.dataset, placement.data)
        splits: dict[str, Dataset] = load_object(DATASETS[recipe.dataset])(placement.data)
        return splits
    except (OSError, UnicodeDecodeError) as error:
        raise LockstepError(f"dataset {recipe.dataset} cannot be read: {error}", DATA) from None
