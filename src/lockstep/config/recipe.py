"""Recipe: the settings that decide the bits of a run. BoundRecipe: a recipe with the size of its
training set.

All other settings are in `placement.py`.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lockstep import errors
from lockstep.config.options import FolderOptions, RecipeOptions
from lockstep.config.schedule import SCHEDULES, Length, Progressive, Schedule
from lockstep.data import AUGMENTATIONS, DATASETS, IMAGE_FOLDER, MEMORY, Augmentation, Features
from lockstep.errors import LockstepError, option, unknown
from lockstep.messages import command
from lockstep.models import MODELS, TIMM
from lockstep.optim import EMA, OPTIMIZERS, Optimizer
from lockstep.pictures.manifest import SOURCES, LabelSource
from lockstep.schema import Settings, choose, dotted, plain_values
from lockstep.text import listed

if TYPE_CHECKING:
    from lockstep.data.dataset import Plan
    from lockstep.pictures.decode import Decoding
    from lockstep.pictures.survey import Survey

# A recipe may come from somebody else: a single number in it must not take all memory or all
# threads of the host.
MAX_TOWERS, MAX_BATCH, MAX_EVAL_BATCH, MAX_THREADS = 1 << 16, 1 << 24, 1 << 16, 1024
MAX_STEPS = 1 << 53  # Larger numbers are not exact as a float.
MIN_IMAGE_PX, MAX_IMAGE_PX = 32, 640  # the sides of the images of a folder
NAME_RULE = "give letters, digits, dots, dashes and underscores, and no dot first"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_OF_TIMM = re.compile(rf"{TIMM}\w[\w.-]*")
_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def plain_name(name: str) -> str:
    """Return `name` if it can be the name of a run's folder. Raises: ValueError if it may name
    another folder.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(NAME_RULE)
    return name


class Recipe(Settings):
    """All settings that can change a bit of the result. A frozen value that can be read without
    torch.

    The fields in `options` and the shorthands are options of `lockstep.train` and of the command
    line.

    Attributes:
        name: The recipe's name, for new runs.
        dataset: A built-in dataset, folder for the images in `data`, or your own as
            package.module:function.
        dataset_sha256: SHA-256 of the data that a Python program gave.
        image_px: Side in pixels to which images of your own are resized.
        grey: Convert the images of a folder to one channel.
        fit: How an image of a folder becomes a square: crop keeps the square in the middle, pad
            adds grey margins, squash changes the proportions.
        interpolation: The filter that resizes images of a folder, with antialiasing: bicubic or
            bilinear.
        test_share: Share of the images that become test images, chosen by a hash of each file, if a
            folder has none.
        group: Regular expression on the path of an image in its folder. Its first group in
            parentheses, or else the whole match, names the group of the image. Images of one group
            always stay in one split.
        layout: Where to read the classes if a folder can be read in several ways: folders (each
            folder in it is a class), table, or names (of the files, by `label_from`).
        label_column: Column of the folder's table that has the classes. Multi-label data may have
            one column of 0 and 1 for each label, as in cat,dog. Default: label, class, category or
            target.
        group_column: Column of the table that has the groups, as in `group`. Default: group.
        split_column: Column of the table that has train, val or test. Default: split.
        label_from: Regular expression on the path of an image in its folder. Its first group in
            parentheses, or else the whole match, is the label.
        label_separator: The text that separates the labels of an image, as in cat;dog.
        left_out: Paths of images in the folder that are not used. `skip_damaged` sets it.
        multi_label: A picture may have several labels, or none. The loss is the sum over the
            classes of binary cross-entropies, and each class has a probability of its own.
        held_out: Number of training images that are left out and evaluated in place of the test
            images, so that you can choose settings without looking at the test images. The held-out
            images are the same for every seed.
        model: A built-in model, timm:NAME with its trained weights, or your own as
            package.module:function.
        model_options: Keyword arguments of the model's function; see its docstring.
        init_sha256: SHA-256 of the file of weights that the run starts from. `init` names the file.
        augmentation: How images are preprocessed and augmented.
        progressive: Smaller images in the first part of training.
        label_smoothing: Share of each target that is spread over all classes, in training.
        test_time_augmentation: Views of a test image whose logits are averaged: off (the image
            alone), flip (also its mirror image), flip-translate (both also moved by one pixel), or
            flip-translate-unsure (moved only for the least certain quarter of each eval_batch).
        towers: Number of towers, each of which computes one equal share of the batch. Each keeps
            its share, so with more towers the batch grows.
        batch: Images per step, over all towers.
        steps: Length of the run in steps; or give `epochs`.
        epochs: Length of the run in epochs; or give `steps`.
        min_steps: The minimum number of steps of a run whose length is in epochs.
        optimizer: The update rule.
        lr: Base learning rate.
        schedule: The factor on the learning rate at each step.
        weight_decay: Parameter name -> c; c / 2 * ||w||^2 is added to the loss, except with AdamW.
            default stands for all other parameters of two or more dimensions (Muon: exactly two).
        decay_factors: For a linear head: weight_decay is multiplied by the best of these factors,
            which is found by cross-validation on the training images. (): no factor.
        head: Name of the last layer, for transfer learning: this layer alone is trained, in
            float32, on features that the layers before it compute once for each image, with the
            weights of init_sha256.
        balanced: Train for tests in which all classes are equally frequent, whatever their shares
            of the training images: the loss adds to each logit the logarithm of the share of its
            class. False: train for the shares of the training images.
        lr_factors: Name of a layer or parameter -> factor on its learning rate; the longest
            matching name counts. The factor 0 freezes a layer, with its buffers, and its norm
            layers use their running averages.
        ema: Exponential moving average of the parameters.
        precision: float32, bfloat16, float16, or auto: chosen to suit the hardware when a run
            is created.
        arithmetic: native: the fastest kernels, whose low-order bits depend on the kind of CPU.
            portable: bit-exact on every CPU tried, in float32 (docs/portable.md).
        threads_per_tower: CPU threads of a tower; another number changes low-order bits.
        eval_batch: Images in one forward pass of an evaluation.
        seed: Seed of initial weights, order, augmentation and dropout.
        exact: False gives up bit-identical results, and allows reductions and kernels that may
            change bits.

    Shorthands:
        tower_batch: Images per step for each tower; or give `batch`.
        portable: Use portable arithmetic (bit-exact on every CPU tried), in float32. A step takes
            1.5 to 2.8 times as long.
    """

    shorthands: ClassVar = ("tower_batch", "portable")
    options: ClassVar = (*RecipeOptions.__annotations__, *FolderOptions.__annotations__)

    name: Annotated[str, AfterValidator(plain_name)]
    dataset: str
    dataset_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    image_px: int | None = Field(None, ge=MIN_IMAGE_PX, le=MAX_IMAGE_PX)
    grey: bool = False
    fit: Literal["crop", "pad", "squash"] = "crop"
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    test_share: float = Field(0.2, gt=0, lt=1)
    group: str | None = Field(None, min_length=1, max_length=1000)
    layout: Literal["folders", "table", "names"] | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    label_from: str | None = Field(None, min_length=1, max_length=1000)
    label_separator: str | None = Field(None, min_length=1)
    left_out: tuple[str, ...] = ()
    multi_label: bool = False
    held_out: int = Field(0, ge=0)
    model: str
    model_options: Annotated[dict[str, Any], AfterValidator(plain_values)] = Field({})
    init_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    augmentation: Annotated[Augmentation, BeforeValidator(choose("augmentation", AUGMENTATIONS))]
    progressive: Progressive | None = None
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    test_time_augmentation: Literal["off", "flip", "flip-translate", "flip-translate-unsure"] = (
        "off"
    )
    towers: int = Field(1, ge=1, le=MAX_TOWERS)
    batch: int = Field(ge=1, le=MAX_BATCH)
    steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    epochs: float | None = Field(None, gt=0, le=MAX_STEPS)
    min_steps: int = Field(1, ge=1, le=MAX_STEPS)
    optimizer: Annotated[Optimizer, BeforeValidator(choose("optimizer", OPTIMIZERS))]
    lr: float = Field(gt=0)
    schedule: Annotated[Schedule, BeforeValidator(choose("schedule", SCHEDULES))]
    weight_decay: dict[str, Annotated[float, Field(ge=0)]] = Field({})
    decay_factors: tuple[Annotated[float, Field(gt=0)], ...] = ()
    head: str | None = Field(None, min_length=1)
    balanced: bool = False
    lr_factors: dict[str, Annotated[float, Field(ge=0)]] = Field({})
    ema: EMA | None = None
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    arithmetic: Literal["native", "portable"] = "native"
    threads_per_tower: int = Field(1, ge=1, le=MAX_THREADS)
    eval_batch: int = Field(500, ge=1, le=MAX_EVAL_BATCH)
    seed: int = Field(0, ge=0, lt=2**63)
    exact: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.dataset not in (*DATASETS, IMAGE_FOLDER, MEMORY) and not _OWN.fullmatch(
            self.dataset
        ):
            allowed = unknown("dataset", self.dataset, (*DATASETS, IMAGE_FOLDER))
            raise ValueError(f"{allowed}, or package.module:function of your own")
        if (self.dataset == MEMORY) != (self.dataset_sha256 is not None):
            raise ValueError(
                f"dataset {MEMORY} and dataset_sha256 belong together, and data= of lockstep.train "
                "sets both: leave them out"
            )
        if self.dataset == IMAGE_FOLDER and self.image_px is None:
            raise ValueError(
                f"dataset folder needs image_px, the side of the images in pixels, as in "
                f"{option('settings', 'image_px=64')}"
            )
        of_folder = ("test_share", "grey", "fit", "interpolation", "group", "left_out", *SOURCES)
        for name in ("image_px", *of_folder):
            given_elsewhere = self.dataset in DATASETS or (
                name in of_folder and self.dataset != IMAGE_FOLDER
            )
            if given_elsewhere and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is for folders of images, and dataset {self.dataset} is not one: "
                    f"leave it out"
                )
        conflict = self.label_source.conflict(self.group)
        if conflict:
            raise ValueError(conflict)
        if self.multi_label and (self.balanced or self.label_smoothing or self.dataset in DATASETS):
            raise ValueError(
                "multi_label=true is for data of your own, with balanced=false and "
                f"label_smoothing=0: set these, or leave out {option('multi_label', True)}"
            )
        of_timm = _OF_TIMM.fullmatch(self.model)
        if self.model not in MODELS and not of_timm and not _OWN.fullmatch(self.model):
            name = self.model if self.model.isidentifier() else "resnet50"
            raise ValueError(
                f"{unknown('model', self.model, MODELS)}, or a network of timm with its weights, "
                f"or a function or class of yours or of torchvision, "
                f"as in {TIMM}{name}, nets.py:{name} or torchvision.models:{name}"
            )
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"give exactly one of steps and epochs (steps {self.steps}, epochs {self.epochs})"
            )
        if self.steps is not None and self.min_steps > 1:
            raise ValueError("min_steps is for a length in epochs: leave it out, or give epochs")
        if rest := self.batch % self.towers:
            below = self.batch - rest
            batches = f"{below} or {below + self.towers}" if below else self.towers
            raise ValueError(
                f"batch {self.batch} does not divide into {self.towers} towers: choose {batches}"
            )
        if self.arithmetic == "portable" and self.precision not in ("auto", "float32"):
            raise ValueError(
                f"precision {self.precision} is for native arithmetic, as its bits depend on the "
                f"machine: leave it out, or set arithmetic=native ({option('portable', False)})"
            )
        if self.head is not None:
            self._check_head()
        elif self.decay_factors:
            raise ValueError(
                "decay_factors need a head that is trained alone (head=NAME): leave them out"
            )
        return self

    def _check_head(self) -> None:
        """Raise a ValueError if a setting needs images in each step, where the head sees only
        features.
        """
        if self.progressive:
            raise ValueError(
                f"progressive changes what the layers before the head {self.head} compute, and "
                "that is computed once: leave it out, or train these layers too, with head=none"
            )
        views = self.augmentation.views
        if views is None:
            raise ValueError(
                f"augmentation {self.augmentation.kind} makes more views than an image and its "
                "mirror image, and with a head only these two are computed: set "
                "augmentation=plain, or flip-translate with pixels=0"
            )
        tested = self.test_time_augmentation
        if tested != "off" and (tested, views) != ("flip", 2):
            raise ValueError(
                f"test_time_augmentation {tested} needs views that training does not compute: set "
                f"test_time_augmentation=off"
            )

    @property
    def tower_batch(self) -> int:
        """Return the number of examples that a tower sees in a step."""
        return self.batch // self.towers

    @property
    def input(self) -> Augmentation | Features:
        """Return how what a dataset holds becomes the input of the layers that are trained."""
        return self.augmentation if self.head is None else Features()

    @property
    def label_source(self) -> LabelSource:
        """Return where the labels of a folder stand."""
        return LabelSource(*(getattr(self, name) for name in LabelSource._fields))

    @property
    def decoding(self) -> "Decoding":
        """Return how the images of a folder become pixels."""
        from lockstep.pictures.decode import Decoding

        return Decoding(*(getattr(self, name) for name in Decoding._fields))

    def survey(self, folder: Path | None, classes: Sequence[str] | None = None) -> "Survey":
        """Return the photos of a folder as the recipe divides them, or all of it as one split with
        the `classes`.
        """
        from lockstep.pictures.survey import survey_folder

        return survey_folder(
            folder,
            self.test_share,
            self.group,
            self.label_source,
            classes,
            self.fit,
            {*self.left_out},
        )

    @property
    def custom_code(self) -> dict[str, str]:
        """Return the settings that name the user's code, as package.module:function."""
        return {
            name: value
            for name in ("model", "dataset")
            if ":" in (value := getattr(self, name)) and not _OF_TIMM.fullmatch(value)
        }

    def require_trust(
        self, source: Path, trusted: bool, settings: Sequence[str] = ("model", "dataset")
    ) -> None:
        """Raise a LockstepError if the file or run `source` names code, and the user has not
        `trusted` it.

        It may come from somebody else, and to import its code executes it. `settings` are those
        that it states.
        """
        code = [
            f"a {name} that is not built in, {path}"
            for name, path in self.custom_code.items()
            if name in settings
        ]
        if code and not trusted:
            raise LockstepError(
                f"{source} uses {listed(code)}, and loading it executes its code. If it is yours, "
                f"or you trust it, add {option('trust_code', True)}"
            )

    def resuming(self, run: Path) -> str:
        """Return how the reader continues the `run`: a command of the shell, or a call in a Python
        program.
        """
        if not errors.in_python:
            return self.command("train", run, "--resume")
        trust = ", trust_code=True" if self.custom_code else ""
        return f"lockstep.train({str(run)!r}, resume=True{trust})"

    def command(self, name: str, run: Path, *options: str) -> str:
        """Return a shell command on the folder `run`. It trusts the user's code, because the
        command runs it.
        """
        return command(name, run, *options, *(["--trust-code"] if self.custom_code else []))

    @property
    def evaluated_split(self) -> str:
        """Return the split that training evaluates: held-out with `held_out`, else test."""
        return "held-out" if self.held_out else "test"

    @property
    def own_weights(self) -> Literal["ema", "raw"]:
        """Return which weights the classifier has, and training evaluates: the averaged ones if an
        average is kept.
        """
        return "raw" if self.ema is None else "ema"

    def bind(self, num_examples: int) -> "BoundRecipe":
        """Return this recipe bound to `num_examples` training examples."""
        if self.steps is not None:
            return BoundRecipe(self, num_examples, self.steps)
        assert self.epochs is not None
        return BoundRecipe(
            self, num_examples, max(self.min_steps, round(self.epochs * num_examples / self.batch))
        )

    def __repr__(self) -> str:
        return f"<Recipe {self.name}: {self.model} on {self.dataset}, digest {self.digest()[:12]}>"

    def digest(self) -> str:
        """Return the SHA-256, in hex, of the canonical JSON (sorted keys, no spaces) of the
        non-default settings and the kinds.

        Defaults are left out, so a new setting changes the digest of no recipe that does not use
        it.
        """
        stated = self.model_dump(mode="json", exclude_defaults=True)
        for name, value in self:
            if hasattr(value, "kind"):
                stated[name]["kind"] = value.kind
        text = json.dumps(stated, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, other: "Recipe") -> list[str]:
        """Return `setting: own value -> other value` for every setting that differs."""
        before, after = dotted(self.model_dump(mode="json")), dotted(other.model_dump(mode="json"))
        return [
            f"{name}: {before.get(name)} -> {after.get(name)}"
            for name in before | after
            if before.get(name) != after.get(name)
        ]

    def toml(self) -> str:
        """Return the recipe as a TOML file that `lockstep train` accepts. Settings that are None
        are left out.

        Raises: LockstepError if `model_options` has null in a list, which TOML cannot express.
        """
        try:
            text = tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
        except TypeError as error:  # model_options may hold any JSON value, also null within a list
            raise LockstepError(
                f"the recipe {self.name} cannot be written as TOML ({error}): use --json"
            ) from None
        return "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in text)


@dataclass(frozen=True)
class BoundRecipe:
    """The steps of a whole run: a pure function of the recipe and the number of training examples.

    Attributes:
        recipe: the recipe.
        examples: how many examples the training set has.
        steps: how many steps the run has.
    """

    recipe: Recipe
    examples: int
    steps: int

    def epoch(self, step: int) -> float:
        """Return how many epochs are complete before `step`, as a fraction."""
        return step * self.recipe.batch / self.examples

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of `step`."""
        recipe = self.recipe
        length = Length(self.steps, self.examples, recipe.batch, recipe.tower_batch)
        return recipe.lr * recipe.schedule.factor(step, length)

    def plan(self, step: int) -> "Plan":
        """Return which examples each tower sees at `step`, and what happens to them."""
        return self.plans(range(step, step + 1))[0]

    def plans(self, steps: range) -> "list[Plan]":
        """Return the plans of consecutive `steps`."""
        # This imports torch, which must not happen before numerics.prepare.
        from lockstep.data.dataset import Pipeline, Plan

        recipe = self.recipe
        grown = recipe.progressive
        return Plan.at(
            seed=recipe.seed,
            steps=steps,
            batch=recipe.batch,
            towers=recipe.towers,
            examples=self.examples,
            pipeline=Pipeline(recipe.input, recipe.arithmetic, recipe.balanced),
            sizes_px=[grown.size_px(step, self.steps) if grown else None for step in steps],
        )
