"""The options that `lockstep.train` takes by name and `lockstep train` as --name, with their types.

Recipe and Placement describe and validate them. This module imports neither, so that the command
line can offer the options without pydantic, whose import takes longer than all else that `--help`
does.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

Tracking = Literal["mlflow", "wandb", "trackio"]
Own = str | Callable[..., object]  # a name, package.module:function, or the function itself


class RecipeOptions(TypedDict, total=False):
    """Settings of every recipe, and shorthands of settings."""

    towers: int | None
    batch: int | None
    tower_batch: int | None
    epochs: float | None
    steps: int | None
    lr: float | None
    seed: int | None
    model: Own | None
    dataset: Own | None
    precision: Literal["auto", "float32", "bfloat16", "float16"] | None
    portable: bool | None


class FolderOptions(TypedDict, total=False):
    """Settings of a recipe that trains on a folder of images: what the images show."""

    multi_label: bool | None
    group: str | None
    layout: Literal["folders", "table", "names"] | None
    label_column: str | None
    group_column: str | None
    split_column: str | None
    label_from: str | None
    label_separator: str | None


class PlacementOptions(TypedDict, total=False):
    """Settings of the placement, but for `data` and `init`, which `train` takes itself."""

    processes: int | None
    device: str | None
    reduction: Literal["tree", "allreduce"] | None
    graphs: bool | None
    side_by_side: bool | None
    check_products: bool | None
    log_every: int | None
    save_every: int | None
    save_every_s: float | None
    eval_every: int | None
    summary_every: int | None
    log_to: Sequence[Tracking] | Tracking | None
    keep: Literal["all"] | int | None
    folds: int | None
    max_restarts: int | None
    timeout: float | None


class TrainOptions(RecipeOptions, FolderOptions, PlacementOptions, total=False):
    """All options of `lockstep.train` beside its own arguments."""
