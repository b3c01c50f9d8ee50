"""Session: the data, network and state of one run, in one process. All processes do the same, in lockstep."""

import json
import resource
import socket
import sys

import torch
from safetensors.torch import load, save
from torch import nn

from lockstep.config.placement import Placement
from lockstep.config.precision import emulated
from lockstep.config.recipe import Recipe
from lockstep.data import DATASETS
from lockstep.data.dataset import Dataset
from lockstep.errors import DATA, ENVIRONMENT, USAGE, LockstepError
from lockstep.reduce import REDUCTIONS, Reduction
from lockstep.run.arithmetic import probe, slowdown
from lockstep.run.checkpoint import Checkpoint
from lockstep.run.environment import changes, exchange, fingerprint, here, towers_of
from lockstep.run.source import sources
from lockstep.settings import load_object
from lockstep.training.evaluate import Evaluation, Progress, evaluate
from lockstep.training.state import PartedError, State
from lockstep.training.tower import Network, build_model, persistent_buffers

_WHITENED = 2000  # images a model's first layer may be made from: some millions of patches


class Session:
    """The data, network and state of one run, in one process."""

    def __init__(
        self,
        recipe: Recipe,
        placement: Placement,
        reduction: Reduction,
        device: torch.device,
        splits: dict[str, Dataset] | None = None,
    ) -> None:
        """Read the recipe's data set, unless its `splits` are given, and make the network and its initial state."""
        self.recipe, self.placement, self.reduction, self.device = recipe, placement, reduction, device
        try:
            self.splits = splits or load_object(DATASETS[recipe.dataset])(placement.data)
        except (OSError, UnicodeDecodeError) as error:
            raise LockstepError(f"data set {recipe.dataset} cannot be read: {error}", DATA) from None
        if recipe.held_out:
            self.splits = {**self.splits, **_held_out(self.splits["train"], recipe.held_out)}
        train_set = self.splits["train"]
        try:
            shape = recipe.augmentation.shape(*train_set.images.shape[1:])
        except ValueError as error:
            raise LockstepError(str(error)) from None
        model = first_model(recipe, shape, train_set)
        self.model_source = sources(recipe.model)
        self.fingerprint = fingerprint(device)
        # The state copies the weights; the network then casts them in place.
        self.state = State(recipe, dict(model.named_parameters()), persistent_buffers(model), device)
        self.network = Network(recipe, model, shape, device)
        self.parameters = sum(p.numel() for p in self.state.parameters.values())

    @property
    def data_sha256(self) -> dict[str, str]:
        """The sha256 of each split that training uses, which a resumed run must find unchanged."""
        return {name: self.splits[name].sha256 for name in ("train", self.recipe.tested_on)}

    def probe(self, train_set: Dataset) -> str:
        """The sha256 of a small update, which must be equal in all processes; see `arithmetic.probe`.

        Raises: LockstepError, in every process, if recipe, data, weights or arithmetic are not equal in all.
        """
        self.agree()
        found = probe(self.recipe, self.network, self.state, train_set)
        if self.recipe.exact:
            self._compare("arithmetic", found)
        return found

    def split(self, name: str, examples: int | None = None) -> Dataset:
        """A split, or its first `examples`, on the device. Raises: LockstepError if the data set has no such."""
        if name not in self.splits:
            raise LockstepError(
                f"data set {self.recipe.dataset} has no split {name!r}: it has {', '.join(self.splits)}"
            )
        dataset = self.splits[name]
        if examples is not None:
            if not 1 <= examples <= len(dataset):
                raise LockstepError(
                    f"--examples: got {examples}: split {name} of data set {self.recipe.dataset} has "
                    f"{len(dataset)}, so give 1 to {len(dataset)}"
                )
            dataset = dataset.first(examples)
        return dataset.to(self.device)

    def restore(self, found: Checkpoint | None) -> None:
        """Continue from the checkpoint process 0 found, in every process; None keeps the initial state."""
        if found is not None and found.manifest.get("recipe_digest") != self.recipe.digest():
            raise LockstepError(f"{found.path} was trained by another recipe than the run's recipe.json states", USAGE)
        tensors = self.reduction.broadcast(save(found.tensors) if found else b"")
        if tensors:
            self.state.load(load(tensors))
            self.agree()

    def emulation(self, train_set: Dataset) -> str | None:
        """What to say where the device only emulates the recipe's precision, with the price, measured; else None."""
        if not emulated(self.recipe.precision, self.device):
            return None
        plain = Recipe.model_validate({**self.recipe.model_dump(), "precision": "float32"})
        model = first_model(plain, self.network.shape, train_set)
        times = slowdown(self.recipe, self.network, plain, model, self.state, train_set)
        kind = "GPU" if self.device.type == "cuda" else "CPU"
        return (
            f"{self.recipe.precision} is emulated on this {kind}: a step takes {times:.1f} times as long as in "
            f"float32, measured on a few images. --precision float32 is another recipe, with other bits"
        )

    def agree(self) -> None:
        """Raise a LockstepError, in every process, unless recipe, training data and weights are equal in all."""
        if self.reduction.processes > 1:
            self._compare("recipe", self.recipe.digest())
            for name, digest in self.data_sha256.items():
                self._compare("training data" if name == "train" else f"{name} data", digest)
            self._compare("source of the model", json.dumps(self.model_source))
            self._compare("weights", self.state.weights_sha256())

    def together(self) -> None:
        """Raise a PartedError, in every process, unless the states of all have equal bits."""
        if self.reduction.processes > 1:
            digests = exchange(self.state.digest(), self.reduction)
            if len(set(digests)) > 1:
                raise PartedError(self.state.step, digests)

    def _compare(self, what: str, own: str) -> None:
        """Raise a LockstepError, in every process, unless all have the same text for `what`."""
        texts = exchange(own, self.reduction)
        other = next((process for process, text in enumerate(texts) if text != texts[0]), None)
        if other is None:
            return
        sessions = [json.loads(text) for text in exchange(json.dumps(self.fingerprint), self.reduction)]
        hosts = exchange(socket.gethostname(), self.reduction)
        differences = changes(sessions[0], sessions[other])
        cause = (
            f"Their environments differ: {'; '.join(differences)}. Use hosts of one CPU or GPU model with the same "
            f"libraries and variables"
            if differences
            else "Their CPUs, libraries and variables are the same. Give every host the same files, and a model only "
            "torch's generator to draw from"
        )
        raise LockstepError(
            f"process 0 (host {hosts[0]}) and process {other} (host {hosts[other]}) do not have the same {what}, so "
            f"they would not train one network. {cause}",
            ENVIRONMENT,
        )

    def places(self, values: int) -> list[tuple[str, str]]:
        """What is where: (label, text) lines; `values` is the length of the vector that is reduced."""
        texts = exchange(here(self.device), self.reduction)
        lines = [
            (f"process {process}", f"{text}: {towers_of(self.recipe, self.reduction.processes, process)}")
            for process, text in enumerate(texts)
        ]
        held = {
            "parameters, float32": sum(t.nbytes for t in self.state.parameters.values()),
            "their average": sum(t.nbytes for t in (self.state.ema or {}).values()),
            f"the network's copy, {self.recipe.precision}": sum(t.nbytes for t in self.network.parameters.values()),
            "data": sum(dataset.images.nbytes for dataset in self.splits.values()),
        }
        sizes = ", ".join(f"{what} {size / 2**20:.1f} MiB" for what, size in held.items() if size)
        lines.append(("in each", f"{sizes}; and the optimizer's state"))
        how = "all towers in one process"
        if self.reduction.processes > 1 or self.placement.reduction == "central-cpu":
            how = REDUCTIONS[self.placement.reduction]
        lines.append(("reduction", f"{values:,} float32 values a step, {values * 4 / 2**20:.1f} MiB; {how}"))
        return lines

    def peak_memory_bytes(self) -> list[int]:
        """The most memory each process has held, in bytes: of its GPU, or on CPU in all."""
        unit = 1 if sys.platform == "darwin" else 1024
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        own = torch.tensor([torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else held])
        return [int(row) for row in self.reduction.gather(own)]

    def evaluate(self, dataset: Dataset, weights: str, progress: Progress | None = None) -> Evaluation:
        """Evaluate the "ema" or "raw" weights."""
        parameters = self.state.ema if weights == "ema" else self.state.parameters
        assert parameters is not None
        return evaluate(self.recipe, self.network, parameters, self.state.buffers, dataset, self.reduction, progress)

    def evaluate_all(self, dataset: Dataset, progress: Progress = lambda share: None) -> dict[str, Evaluation]:
        """Evaluate every kind of weights the run has, the one that makes the classifier first."""
        kinds = ["ema", "raw"] if self.state.ema is not None else ["raw"]

        def part_of(kind: int) -> Progress:
            return lambda share: progress((kind + share) / len(kinds))

        return {weights: self.evaluate(dataset, weights, part_of(kind)) for kind, weights in enumerate(kinds)}


def _held_out(train_set: Dataset, count: int) -> dict[str, Dataset]:
    """The training set as two splits, the second of `count` examples."""
    if count >= len(train_set):
        most = len(train_set) - 1
        raise LockstepError(
            f"held_out: got {count}: the training set has {most + 1} images, so 0 to {most} are allowed"
        )
    kept, held = train_set.held_out(count)
    return {"train": kept, "held-out": held}


def first_model(recipe: Recipe, shape: tuple[int, int, int], train_set: Dataset) -> nn.Module:
    """The network before the first step, on the CPU: a function of the recipe's seed and the training images.

    Raises: LockstepError if the model does not take every size of images that the recipe names.
    """
    model = build_model(recipe, shape, len(train_set.classes))
    _check_sizes(recipe, model, shape)
    if callable(whiten := getattr(model, "whiten", None)):
        whiten(recipe.augmentation.test(train_set.images[:_WHITENED].cpu()))
    return model


def _check_sizes(recipe: Recipe, model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Raise a LockstepError unless the model takes every size the images are shrunk to."""
    if recipe.progressive is None:
        return
    least = getattr(model, "least_px", None)
    if least is None:
        raise LockstepError(f"model {recipe.model} takes images of one size: set progressive=none")
    largest = min(shape[1:])
    if wrong := [size for size in recipe.progressive.sizes_px if not least <= size <= largest]:
        raise LockstepError(f"progressive.sizes_px: got {wrong[0]}: {least} to {largest} is allowed here")
