"""Replica: one process's data, model and state. All processes of a run hold the same. `read_splits`
reads the images of a recipe from wherever its dataset is.
"""

from collections.abc import Callable, Generator, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from lockstep import files, hardware, numerics
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core.captured import Captured, obstacle
from lockstep.core.evaluation import Progress, classify, evaluate
from lockstep.core.loop import updates
from lockstep.core.model import Model
from lockstep.core.reduction import Reduction
from lockstep.core.state import State, classifier_weights
from lockstep.core.steps import Observer
from lockstep.core.task import Score
from lockstep.core.tower import Tower
from lockstep.core.vector import Requests
from lockstep.data import DATASETS, IMAGE_FOLDER, MEMORY, arrays
from lockstep.data.dataset import Dataset, first_other_class
from lockstep.data.fetch import ensure
from lockstep.data.folder import read_folder
from lockstep.errors import DATA, LockstepError, option
from lockstep.files import Record
from lockstep.head import confidence, outliers
from lockstep.head.features import features_key, features_of
from lockstep.jobs.context import Context
from lockstep.jobs.weights import InitialWeights, load_initial_weights
from lockstep.kernels.portable import arithmetic
from lockstep.messages import logger
from lockstep.pictures.decode import decoder_versions
from lockstep.pictures.examples import Examples
from lockstep.runs.provenance import fingerprint, imported_code, sources
from lockstep.runs.statefile import FROZEN_FILE
from lockstep.schema import load_object
from lockstep.text import listed, words_of

_VALIDATION = ("validation", "val", "valid")  # names that users give to this split


class Replica:
    """The data, model and state of a run in one process.

    Attributes:
        recipe, placement, group, device: what the replica was made with.
        bound: the steps of the run.
        reduction: adds the vectors of all towers.
        gpus: the number of each GPU on which the processes of this host compute, with the number
            on this host of one that does; {} on CPUs.
        splits: the dataset's splits by name, on the CPU.
        initial_weights: what the model took from `placement.init`, or None if it names no file.
        seeded_state: the state with the weights of the seed, if `placement.init` replaces these.
        network, state: the network in the recipe's precision, and the master state that trains it.
        backbone: the layers before the head, or None if the whole network is trained.
        model_source: SHA-256 of each source file of the user's model and dataset; {} if both are
            built in.
        decoder: the versions of the image decoder, or None if the dataset is no folder of images.
        fingerprint: see `provenance.fingerprint`.
    """

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        ctx: Context,
        splits: dict[str, Dataset] | None = None,
        surveyed: Examples | None = None,
    ) -> None:
        """Read the recipe's dataset, unless `splits` are given, and make network and state.
        `surveyed` is that of `read_splits`.
        """
        self.recipe, self.placement = recipe, placement
        self.group, self.device = ctx.group, ctx.device
        ctx.monitor.use(ctx.device)
        self.reduction = Reduction(ctx.group, recipe.towers, placement.reduction)
        hosts = ctx.group.hosts()
        self._local_processes = hosts.count(hosts[ctx.group.process])
        self.gpus: dict[int, int] = {}
        if ctx.device.type == "cuda":
            numbers = (placement.gpus or range(self._local_processes))[: self._local_processes]
            self.gpus = {number: local for local, number in enumerate(numbers)}

        # One process of a host reads, decodes and downloads; then the others find the result.
        self._readers = ctx.group.without_timeout()
        self._first_of_host = not ctx.local
        if splits is None:
            with self._readers.in_turn(self._first_of_host):
                splits = read_splits(recipe, placement, surveyed=surveyed)
        self.splits = splits_of(recipe, splits)
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
        model.to_device(ctx.device)
        self.network, self.backbone = model.network, model.backbone

    def _load_initial_weights(self, model: Model) -> InitialWeights | None:
        """Load the weights that the recipe starts from. They replace those fitted to the images."""
        recipe, path = self.recipe, self.placement.init
        if path is None:
            if recipe.head is not None:
                raise LockstepError(
                    f"only the head {recipe.head} is trained, so the layers before it need trained "
                    f"weights: give their file or run as {option('init')}"
                )
            return None
        # A resumed session has no file to load, so the probe of every session takes the weights of
        # the seed.
        self.seeded_state = model.state(self.device)
        # The layers before the head, which the checkpoints of this run share. Its head is not the
        # one that the run starts from.
        resumed = path.name == FROZEN_FILE and files.sha256(path) != recipe.init_sha256
        sha256 = None if resumed else recipe.init_sha256
        initial = load_initial_weights(model.module, recipe.model, path, sha256)
        if resumed:
            return None
        if not initial.complete:
            # Only the head is trained, so random layers before it would stay random.
            own = dict(model.module.named_parameters())
            lacking = [n for n in initial.new if n in own and not n.startswith(f"{recipe.head}.")]
            if recipe.head and lacking:
                raise LockstepError(
                    f"{option('init', path)}: only the layer {recipe.head} is trained, and the "
                    f"file has no weights of the right shape for {listed(lacking[:3])}: give "
                    f"weights of {recipe.model} for images of {recipe.image_px} pixels, or the "
                    f"{option('settings', 'image_px=...')} that these are for",
                    DATA,
                )
            logger.warning(f"{option('init', path)}: {initial}")
        return initial

    @cached_property
    def train_set(self) -> Dataset:
        """The training images on the device, or their features. All processes ask together."""
        return self.split("train")

    def choose_decay(self) -> None:
        """Let the best of the recipe's `decay_factors` decide `bound` and `state`, before the first
        step. All processes call this together.
        """
        if self.recipe.decay_factors:
            self.bound = confidence.with_best_decay(self.bound, self.state, self.train_set)
            self.state = self.state.fresh(weight_decay=self.bound.recipe.weight_decay)

    @cached_property
    def test_set(self) -> Dataset:
        """The images, or features, that training evaluates. All processes ask together."""
        return self.split(self.recipe.evaluated_split)

    @cached_property
    def tower(self) -> Tower:
        """What computes the towers of this process, one by one."""
        return Tower(self.bound, self.network)

    @cached_property
    def _chunks(self) -> Captured | None:
        """What classifies the chunks of an evaluation as CUDA graphs, or None."""
        if self.device.type == "cpu" or self.without_graphs:
            return None
        return Captured("evaluations", partial(classify, self.recipe), exact=self.recipe.exact)

    @property
    def without_graphs(self) -> str | None:
        """Why a GPU computes kernel by kernel, in words; None if it does by CUDA graphs."""
        if not self.placement.graphs:
            return f"the option {option('graphs', False)}"
        if self.placement.check_products:
            return f"the option {option('check_products', True)}"
        return obstacle(self.recipe)

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
        if self.backbone is not None:
            recipe = self.recipe
            code = imported_code(recipe.model) if "model" in recipe.custom_code else {}
            cores = hardware.cores() // self._local_processes
            dataset = features_of(
                self.backbone,
                dataset,
                self._readers,
                features_key(recipe, self.fingerprint, code),
                first_of_host=self._first_of_host,
                threads=max(1, cores // recipe.threads_per_tower),
                exact=recipe.exact,
            )
        return dataset.to(self.device)

    def updates(
        self,
        log: Observer,
        *,
        poll_requests: Callable[[], Requests] = Requests,
        boundary: Callable[[int], bool] = lambda updates: True,
    ) -> Generator[Requests]:
        """Train the state to the last step, as `core.loop.updates`. All processes call this
        together.
        """
        obstacles = self.device.type == "cpu" or obstacle(self.recipe)
        return updates(
            self.train_set,
            self.tower,
            self.reduction,
            self.state,
            log,
            poll_requests=poll_requests,
            boundary=boundary,
            ahead=not self.group.gather(torch.tensor([int(bool(obstacles))])).any(),
            as_graph=self.placement.graphs and not self.placement.check_products,
            side_by_side=self.placement.side_by_side,
        )

    def evaluate(
        self,
        dataset: Dataset,
        weights: str,
        progress: Progress = lambda share: None,
        keep_logits: bool = False,
    ) -> Score:
        """Evaluate the "ema" or "raw" weights."""
        parameters = self.state.parameters_of(weights)
        return evaluate(
            self.network,
            parameters,
            self.state.buffers,
            dataset,
            self.group,
            progress,
            keep_logits,
            self._chunks,
        )

    def evaluate_all(self, progress: Progress = lambda share: None) -> dict[str, Score]:
        """Evaluate every kind of weights on the test set, for a head with logits.

        The classifier's weights come first.
        """
        kinds = dict.fromkeys((self.recipe.own_weights, "raw"))
        results = dict[str, Score]()
        for kind in kinds:
            results[kind] = self.evaluate(
                self.test_set,
                kind,
                lambda share: progress((len(results) + share) / len(kinds)),
                keep_logits=self.backbone is not None,
            )
        return results

    @property
    def data_sha256(self) -> dict[str, str]:
        """The SHA-256 of each split that training uses. A resumed run must find the same."""
        return {name: self.splits[name].sha256 for name in ("train", self.recipe.evaluated_split)}

    def require_same_data(self, run: Path, recorded: Record) -> None:
        """Raise a LockstepError unless splits and classes are those `recorded` by the `run`."""
        where = f" in {self.placement.data}" if self.placement.data else ""
        for name, sha256 in self.data_sha256.items():
            if (recorded.get("data_sha256") or {}).get(name, sha256) != sha256:
                raise LockstepError(
                    f"the {'training' if name == 'train' else name} data{where} is not what {run} "
                    f"was trained on (its sha256 differs): images were added, removed or changed "
                    f"since. Give the original data as {option('data')}, or start a new run",
                    DATA,
                )
        self.require_same_classes(run, recorded.get("classes"))

    def require_same_classes(self, run: Path, recorded: Sequence[str] | None) -> None:
        """Raise a LockstepError unless the names of the classes are the `recorded` ones, if any."""
        classes = self.splits["train"].classes
        if other := first_other_class(recorded or classes, classes):
            label, before, now = other
            raise LockstepError(
                f"the classes are not those that {run} was trained on: label {label} was {before} "
                f"and is {now}. Give images of the same classes as {option('data')}, or start a "
                f"new run",
                DATA,
            )

    def metadata(self) -> Record:
        """Return what a checkpoint and a model file state about the run."""
        train_set = self.splits["train"]
        return {
            "recipe_digest": self.recipe.digest(),
            "data_sha256": self.data_sha256,
            "model_source": self.model_source,
            "classes": train_set.classes,
            "image_shape": list(train_set.images.shape[1:]),
        }

    def model_file(self) -> tuple[dict[str, Tensor], Record]:
        """Return the tensors and the metadata of the file of the classifier.

        The file of a head can tell unfamiliar images, and that of a linear one confident answers.
        """
        recipe, state = self.recipe, self.state
        tensors = classifier_weights(state.state_dict())
        if self.backbone is not None:
            tensors |= confidence.confidence_tensors(self.bound, state, self.train_set)
            with arithmetic(recipe.arithmetic):
                tensors |= outliers.outlier_tensors(self.train_set)
        return tensors, {
            **self.metadata(),
            "recipe": recipe.model_dump(mode="json"),
            "weights_sha256": state.weights_sha256(),
        }


def splits_of(recipe: Recipe, splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Return `splits`, with "held-out", a part of "train", if the recipe holds out training images.
    Without a "test", the validation images are the test images too, as in a folder.

    Raises: LockstepError unless there is the split on which a run is evaluated.
    """
    train_set, name = splits["train"], recipe.evaluated_split
    if train_set.multi_label != recipe.multi_label:
        remedy = option("multi_label", train_set.multi_label)
        if train_set.multi_label and (train_set.labels.sum(1) == 1).all():
            remedy += ", or labels.argmax(1), as each image has exactly one"
        raise LockstepError(
            f"the images of dataset {recipe.dataset} have "
            f"{words_of(train_set.multi_label).labels}, and the recipe has "
            f"multi_label={recipe.multi_label}: give {remedy}",
            DATA,
        )
    if name in splits:
        return splits
    other = next((each for each in _VALIDATION if each in splits), None)
    if name == "test" and other:
        logger.warning("there is no test split, so the validation images also serve as test images")
        return {**splits, "test": splits[other]}
    if recipe.held_out >= len(train_set):
        raise LockstepError(
            f"held_out: got {recipe.held_out}: the training set has {len(train_set)} images, so 0 "
            f"to {len(train_set) - 1} are allowed"
        )
    if recipe.held_out:
        kept, held = train_set.held_out(recipe.held_out)
        return {**splits, "train": kept, "held-out": held}
    raise LockstepError(
        f"dataset {recipe.dataset} has no {name} split, on which the run is evaluated: its splits "
        f"are {', '.join(splits)}. Add it, or hold out training images, as in "
        f"{option('settings', f'held_out={len(train_set) // 10}')}"
    )


def read_splits(
    recipe: Recipe,
    placement: Placement,
    classes: Sequence[str] | None = None,
    surveyed: Examples | None = None,
) -> dict[str, Dataset]:
    """Return the splits of the recipe's dataset, by name, on the CPU. A dataset that is missing is
    downloaded.

    With `classes`, all images of a folder are one split, see `survey_folder`. `surveyed` are
    the examples of a folder, if it has been surveyed for this recipe.
    """
    try:
        if recipe.dataset == IMAGE_FOLDER:
            if surveyed is None:
                surveyed = recipe.survey(placement.data, classes).require_sound().examples()
            return read_folder(surveyed, recipe.decoding)
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
