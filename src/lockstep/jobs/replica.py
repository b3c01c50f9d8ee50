"""Replica: one process's data, model and state. All processes of a run hold the same."""

from collections.abc import Generator
from functools import cached_property, partial
from typing import Any

import torch

from lockstep import hardware, numerics
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core.captured import Captured, obstacle
from lockstep.core.evaluation import Progress, classify, evaluate
from lockstep.core.log import Log
from lockstep.core.loop import updates
from lockstep.core.model import Model
from lockstep.core.reduction import Reduction
from lockstep.core.task import Score
from lockstep.core.tower import Tower
from lockstep.core.vector import Requests
from lockstep.data import IMAGE_FOLDER
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError, option
from lockstep.files import Record
from lockstep.head.confidence import with_best_decay
from lockstep.head.features import features_key, features_of
from lockstep.jobs.context import Context
from lockstep.jobs.splits import read_splits, splits_of
from lockstep.jobs.weights import initial_weights
from lockstep.pictures.decode import decoder_versions
from lockstep.pictures.examples import Examples
from lockstep.runs.provenance import fingerprint, imported_code, sources


class Replica:
    """The data, model and state of a run in one process.

    Attributes:
        recipe, placement, group, device: what the replica was made with.
        bound: the steps of the run.
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
        # A resumed session has no file to load, so the probe of every session takes the weights of
        # the seed.
        seeded = placement.init is not None
        self.seeded_state = model.state(ctx.device) if seeded else None
        self.initial_weights = initial_weights(recipe, placement.init, model.module)
        # A module of the user, imported by now, may have set torch's flags for itself.
        numerics.configure(recipe.threads_per_tower, recipe.exact)
        self.state = model.state(ctx.device)
        model.to_device(ctx.device)
        self.network, self.backbone = model.network, model.backbone

    @cached_property
    def train_set(self) -> Dataset:
        """The training images on the device, or their features. All processes ask together."""
        return self.split("train")

    def choose_decay(self) -> None:
        """Let the best of the recipe's `decay_factors` decide `bound` and `state`, before the first
        step. All processes call this together.
        """
        if self.recipe.decay_factors:
            self.bound = with_best_decay(self.bound, self.state, self.train_set)
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

    def updates(self, log: Log, **options: Any) -> Generator[Requests]:
        """Train the state to the last step, as `core.loop.updates` with these `options`. All
        processes call this together.
        """
        obstacles = self.device.type == "cpu" or obstacle(self.recipe)
        return updates(
            self.train_set,
            self.tower,
            Reduction(self.group, self.recipe.towers, self.placement.reduction),
            self.state,
            log,
            ahead=not self.group.gather(torch.tensor([int(bool(obstacles))])).any(),
            as_graph=self.placement.graphs and not self.placement.check_products,
            side_by_side=self.placement.side_by_side,
            **options,
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
