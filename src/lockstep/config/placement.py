"""Placement: where a run computes and what it records.

No setting here can change a bit of the weights, with two exceptions: in native arithmetic `device`,
because each kind of device has bits of its own, and `reduction` where the recipe says exact=false.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lockstep import hardware
from lockstep.config.options import Tracking
from lockstep.errors import ENVIRONMENT, LockstepError, option
from lockstep.schema import Settings

if TYPE_CHECKING:
    from lockstep.config.recipe import Recipe

# name -> whether it keeps all bits. With one process they are the same.
REDUCTIONS = {"tree": True, "allreduce": False}


def _matches(pattern: str, allowed: str) -> BeforeValidator:
    """Return a validator of values whose text has the `pattern`. Its error says what is
    `allowed`.
    """

    def validate(value: Any) -> Any:
        if not re.fullmatch(pattern, str(value)):
            raise ValueError(allowed)
        return value

    return BeforeValidator(validate)


_DEVICE = _matches(
    r"auto|cpu|cuda(:\d+(,\d+)*)?",
    "give auto, cpu, cuda, or the GPU of each process, as in cuda:0 or cuda:0,2; Lockstep computes "
    "on no other kind of GPU, such as Apple's (mps)",
)


def _each(value: Any) -> Any:
    """Return the different parts of a value that may be a single text."""
    return tuple(dict.fromkeys([value] if isinstance(value, str) else value))


_KEEP = _matches(r"all|[1-9]\d{0,8}", "give a number from 1 on, or all")


class Placement(Settings):
    """All settings that are not the recipe's: where a run computes and what it records.

    They are options of `lockstep.train` and of the command line.

    Attributes:
        data: Folder of the dataset. Default: a folder in LOCKSTEP_DATA, else in the user's cache,
            else a download.
        processes: Number of processes. Default: one for each GPU; on CPUs one for each tower, but
            not more than the cores allow, and one if only the last layer is trained.
        device: cpu, cuda, the GPU of each process as in cuda:0,2 or cuda:0,0, or auto: GPUs if
            there are any and the recipe is native. Default: auto.
        reduction: How the vectors of the towers are added: tree, or allreduce, which is not exact.
            Default: tree.
        graphs: On a GPU, launch a step as one CUDA graph where that keeps its bits. Default: on.
        side_by_side: On a GPU, compute up to 8 towers of a process at the same time, each with a
            copy of the network. Default: off.
        check_products: In portable arithmetic, compare an exact checksum of each product in
            training: a wrong bit of a faulty CPU or memory is found in its own step. Default: off.
        log_every: Steps between two lines of the log. Default: 10 in log.txt, and a line every 10
            seconds elsewhere.
        save_every: Steps between two checkpoints. Default: 1000.
        save_every_s: The most seconds of training that a crash may cost; 0 saves by steps only.
            Default: 30.
        eval_every: Steps between two evaluations. Default: only at the end.
        summary_every: Steps between two TensorBoard summaries; 0 writes none. Default: 100.
        log_to: Also log to mlflow, wandb or trackio, by the library of an extra of this name; or to
            several. Default: none.
        keep: How many of the latest checkpoints to keep, besides the best one; all keeps a chain
            that `lockstep verify --all` replays. Default: 5.
        folds: Also test every image once: train so many more heads, each without a part of the
            training and test images, and test it on this part (cross-validation). Groups, copies
            and images that look alike stay together. The run's own head stays the same.
        max_restarts: How often all processes are started again after one has failed. Default: 3.
        timeout: Seconds without progress after which a run counts as hung. The first step and each
            part of an evaluation may take ten times as long. Default: 60.
    """

    data: Path | None = None
    init: Path | None = None  # the file whose SHA-256 the recipe has
    processes: int | None = Field(None, ge=1)
    device: Annotated[str, _DEVICE] = "auto"
    reduction: Literal["tree", "allreduce"] = "tree"
    graphs: bool = True
    side_by_side: bool = False
    check_products: bool = False
    log_every: int | None = Field(None, ge=1)
    save_every: int = Field(1000, ge=1)
    save_every_s: float = Field(30.0, ge=0)
    eval_every: int | None = Field(None, ge=1)
    summary_every: int = Field(100, ge=0)
    log_to: Annotated[tuple[Tracking, ...], BeforeValidator(_each)] = ()
    keep: Annotated[Literal["all"] | int, _KEEP] = 5
    folds: int | None = Field(None, ge=2)
    max_restarts: int = Field(3, ge=0)
    timeout: float = Field(60.0, ge=1)

    @property
    def gpus(self) -> list[int] | None:
        """Return the GPUs that `device` names, in order of the host's processes; None if it names
        none.
        """
        numbers = self.device.partition(":")[2]
        return [int(number) for number in numbers.split(",")] if numbers else None


def device_for(arithmetic: str, device: str) -> str:
    """Return the `device` of a placement for a recipe's `arithmetic`.

    Portable arithmetic computes on a GPU only if it is asked to: one H100 took three times the time
    of two CPU cores.
    """
    return "cpu" if arithmetic == "portable" and device == "auto" else device


def gpus_here(placement: Placement) -> list[int]:
    """Return the numbers of this host's GPUs that `placement` allows; [] to compute on the CPU.

    Raises: LockstepError if it asks for a GPU that is not here.
    """
    count = hardware.gpus() if placement.device != "cpu" else 0
    if placement.device.startswith("cuda") and count == 0:
        why = f" ({problem})" if (problem := hardware.gpu_problem()) else ""
        raise LockstepError(
            f"{option('device', placement.device)}: torch sees no CUDA GPU here{why}. Use "
            f"{option('device', 'cpu')}, or auto",
            ENVIRONMENT,
        )
    if missing := [number for number in placement.gpus or () if number >= count]:
        raise LockstepError(
            f"{option('device', placement.device)}: there is no GPU {missing[0]}: choose from 0 to "
            f"{count - 1}",
            ENVIRONMENT,
        )
    return placement.gpus or list(range(count))


def check(recipe: "Recipe", placement: Placement) -> None:
    """Raise a LockstepError if `placement` cannot serve `recipe`."""
    most = placement.processes or recipe.towers
    if most > recipe.towers:
        raise LockstepError(
            f"{most} processes need at least one tower each, and the recipe has {recipe.towers}: "
            f"choose {option('processes', 1)} to {recipe.towers}. A new run may have more towers, "
            f"which is another recipe"
        )
    if len(placement.gpus or ()) > most:
        raise LockstepError(
            f"{option('device', placement.device)}: name one GPU for each process, at most {most}, "
            f"as each process needs a tower"
        )
    if placement.check_products and recipe.arithmetic != "portable":
        raise LockstepError(
            f"{option('check_products', True)}: only products in portable arithmetic have an exact "
            f"checksum, and this recipe is {recipe.arithmetic}: give {option('portable', True)}"
        )
    if recipe.exact and not REDUCTIONS[placement.reduction]:
        raise LockstepError(
            f"reduction {placement.reduction!r} is not bit-exact: choose tree, or "
            f"give up exactness in the recipe with {option('settings', 'exact=false')}"
        )
