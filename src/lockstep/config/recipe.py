"""Recipe: all that decides the bits of a run. Every other setting is in `placement.py`. Neither needs torch."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from lockstep.config.schedule import SCHEDULES, Progressive, Schedule
from lockstep.data import AUGMENTATIONS, DATASETS, Augmentation
from lockstep.errors import LockstepError, unknown
from lockstep.models import MODELS
from lockstep.optim import EMA, OPTIMIZERS, Optimizer
from lockstep.settings import Settings, choose

S = TypeVar("S", bound=Settings)

NAME_RULE = "give letters, digits, dots, dashes and underscores, no dot first"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_OWN_MODEL = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def plain_name(name: str) -> str:
    """`name`, which is part of a run's folder. Raises: ValueError if it might name another folder."""
    if not _NAME.fullmatch(name):
        raise ValueError(NAME_RULE)
    return name


_SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _full_name(precision: Any) -> Any:
    return _SHORT_NAMES.get(precision, precision) if isinstance(precision, str) else precision


class Recipe(Settings):
    """All that can change a bit of the result.

    Attributes:
        name: what the recipe is called: letters, digits, dots, dashes and underscores, no dot first.
        dataset: a name in DATASETS.
        held_out: training images that are left out of training, which is evaluated on them instead of the test images:
            for choosing settings, so that the test images (`lockstep eval RUN --split test`) still judge what was
            chosen. The same ones for every seed.
        model: a name in MODELS, or package.module:function of your own.
        model_options: keyword arguments of the model's function; its docstring says which there are.
        augmentation: how images become network input.
        progressive: the images' size in training, smaller at first; None: as they are.
        label_smoothing: the part of each target that is spread over all classes, in training.
        test_views: what of an image is classified in evaluation: it alone; with its mirror image; with both of them
            moved by one pixel up left and down right, too; or moved so only if it is among the least sure quarter of
            the `eval_batch` it is evaluated with. The logits are averaged.
        towers: logical replicas T; each sees batch / T examples a step.
        batch: examples a step, over all towers.
        steps, epochs: the length of the run; exactly one of them.
        optimizer, lr, schedule: the update rule, its base learning rate and what multiplies that at each step.
        weight_decay: parameter name -> coefficient c; c / 2 * ||w||^2 is added to the loss.
        freeze: name of a layer or parameter -> the part of the run after which it is trained no more. The backward pass
            ends before layers at the input that are frozen, which saves its time.
        ema: the average of the parameters, or None.
        precision: what towers compute in (also as fp32, bf16 or fp16); weights, optimizer state, average and reduction
            are always float32. With float16 the loss is scaled, by a power of two that follows the gradients
            (optim/scale.py). "auto" becomes bfloat16 or float32 when a run is created, by what its hardware computes
            fast (precision.py).
        compile: have torch compile the network, in every process at its start: for GPUs, where that takes a minute and
            makes steps faster. On a CPU it takes as long and gains nothing. Needs a C compiler.
        threads_per_tower: CPU threads a tower computes on (a sum over two threads is another sum).
        eval_batch: images evaluated at a time.
        seed: decides initial weights, order, augmentation and dropout.
        exact: False gives up equal bits, for reductions and kernels that do not keep them.
    """

    name: Annotated[str, AfterValidator(plain_name)]
    dataset: str
    held_out: int = Field(0, ge=0)
    model: str
    model_options: dict[str, Any] = Field({})
    augmentation: Annotated[Augmentation, BeforeValidator(choose("augmentation", AUGMENTATIONS))]
    progressive: Progressive | None = None
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    test_views: Literal["one", "flip", "flip-translate", "flip-translate-unsure"] = "one"
    towers: int = Field(1, ge=1)
    batch: int = Field(ge=1)
    steps: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0)
    optimizer: Annotated[Optimizer, BeforeValidator(choose("optimizer", OPTIMIZERS))]
    lr: float = Field(gt=0)
    schedule: Annotated[Schedule, BeforeValidator(choose("schedule", SCHEDULES))]
    weight_decay: dict[str, Annotated[float, Field(ge=0)]] = Field({})
    freeze: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field({})
    ema: EMA | None = None
    precision: Annotated[Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(_full_name)] = "float32"
    compile: bool = False
    threads_per_tower: int = Field(1, ge=1)
    eval_batch: int = Field(500, ge=1)
    seed: int = Field(0, ge=0, lt=2**63)
    exact: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.dataset not in DATASETS:
            raise ValueError(unknown("data set", self.dataset, DATASETS))
        if self.model not in MODELS and not _OWN_MODEL.fullmatch(self.model):
            raise ValueError(unknown("model", self.model, MODELS) + ", or package.module:function of your own")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"give steps or epochs, not both and not neither (steps {self.steps}, epochs {self.epochs})"
            )
        if self.batch % self.towers:
            raise ValueError(_indivisible(self.batch, self.towers))
        return self

    @property
    def tower_batch(self) -> int:
        """Examples a tower sees in a step."""
        return self.batch // self.towers

    @property
    def tested_on(self) -> str:
        """The split that training evaluates: "test", or "held-out" where some of the training images are."""
        return "held-out" if self.held_out else "test"

    def total_steps(self, examples: int) -> int:
        """The number of steps of the whole run, for a training set of `examples` examples."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * examples / self.batch))

    def size_px(self, step: int, examples: int) -> int | None:
        """The side of the images of `step`, in pixels; None: the side they have."""
        return self.progressive.size_px(step, self.total_steps(examples)) if self.progressive else None

    def frozen(self, step: int, examples: int) -> tuple[str, ...]:
        """The names in `freeze` that are not trained at `step`."""
        steps = self.total_steps(examples)
        return tuple(name for name, share in self.freeze.items() if step >= round(share * steps))

    def rate(self, step: int, examples: int) -> float:
        """The learning rate of `step`."""
        steps, tower_batch = self.total_steps(examples), self.tower_batch
        return self.lr * self.schedule.factor(
            step, steps=steps, batch=self.batch, tower_batch=tower_batch, examples=examples
        )

    def digest(self) -> str:
        """sha256, in hex, of the canonical JSON (sorted keys, no spaces) of what is not at its default.

        So a recipe keeps its digest, and its runs can be resumed, when there is a new setting that it does not use.
        """
        text = json.dumps(_stated(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, other: "Recipe") -> list[str]:
        """`setting: mine -> theirs` for every setting that differs."""
        mine, theirs = dotted(self.model_dump(mode="json")), dotted(other.model_dump(mode="json"))
        keys = [*mine, *(key for key in theirs if key not in mine)]
        return [f"{k}: {mine.get(k)} -> {theirs.get(k)}" for k in keys if mine.get(k) != theirs.get(k)]

    def toml(self) -> str:
        """The recipe as a TOML file that can be trained; settings that are None are left out.

        It is safe to print: what does not print is in its strings alone, and written there as TOML's escapes.
        """
        text = tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))
        return "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in text)


def _stated(settings: Settings) -> dict[str, Any]:
    """The kind, and the settings that are not at their default, as JSON values."""
    values = settings.model_dump(mode="json")
    stated: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            stated[name] = _stated(value)
        elif name == "kind" or value != field.default:
            stated[name] = values[name]
    return stated


def validated(kind: type[S], fields: Mapping[str, Any]) -> S:
    """`kind` from `fields`, or a LockstepError in plain words."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise LockstepError("; ".join(_sentence(kind, fields, item) for item in error.errors())) from None


def dotted(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one mapping with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return flat


def _sentence(kind: type[Settings], fields: Mapping[str, Any], item: Any) -> str:
    """One of pydantic's errors, in the words of the settings: what we got and what is allowed."""
    name = ".".join(str(part) for part in item["loc"])
    title = kind.__name__.lower()
    if item["type"] == "extra_forbidden":
        return unknown(f"{title} setting", name, _known(kind, fields, item["loc"]))
    if item["type"] == "missing":
        return f"{title} setting {name!r} is missing"
    problem = item["msg"].removeprefix("Value error, ")
    return f"{title} setting {name}: got {item['input']!r}: {problem}" if name else problem


def _known(kind: type[Settings], fields: Mapping[str, Any], loc: tuple[str | int, ...]) -> list[str]:
    """The settings there are where `loc` names one that is not: of the recipe, or of a group in it."""
    if len(loc) == 1:
        return [*kind.model_fields, *(["tower_batch"] if kind is Recipe else [])]
    group = str(loc[0])
    registry = {"augmentation": AUGMENTATIONS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}.get(group)
    others: dict[str, type[Settings]] = {"ema": EMA, "progressive": Progressive}
    chosen = registry[fields[group]["kind"]] if registry else others[group]
    return [f"{group}.{name}" for name in chosen.model_fields]


def _indivisible(batch: int, towers: int) -> str:
    below, above = batch // towers * towers, -(-batch // towers) * towers
    batches = f"{below} or {above}" if below else str(above)
    divisors = [str(d) for d in range(1, min(batch, 64) + 1) if batch % d == 0 and d <= max(towers, 16)]
    several = f"{', '.join(divisors[:-1])} or {divisors[-1]}" if len(divisors) > 1 else divisors[0]
    return f"batch {batch} does not divide into {towers} towers: choose {batches}, or {several} towers"
