"""lockstep.train, and `lockstep train`.

--help shows the options that most people use, and --help-all shows all options.

Examples:
  lockstep train                                digits, on up to 4 cores
  lockstep train photos/                        your images, in photos/cats, photos/dogs, ...
  lockstep train photos/ --model timm:resnet50  the same, with the features of another network
  lockstep train mnist --data ~/mnist
  lockstep train cifar10-tutorial --towers 2 --epochs 10 --name try
  lockstep train digits --set optimizer.momentum=0.8 --set schedule.kind=constant
  lockstep train --init runs/try --epochs 20    a new run from the final weights of another
  lockstep train runs/try --resume              after Ctrl-C, on any number of processes
  lockstep show digits > mine.toml; lockstep train mine.toml
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from lockstep.commands.named import placement_of
from lockstep.commands.plan import changes_of, train_spec
from lockstep.commands.shell import require_extra, run_job
from lockstep.config.options import TrainOptions
from lockstep.config.recipe import Recipe
from lockstep.files import given
from lockstep.launch.submit import outer_world
from lockstep.messages import logger, muted
from lockstep.runs.run import Run


def train(
    what: str | Path | Recipe | Run | None = None,
    *,
    data: str | Path | Mapping[str, object] | None = None,
    settings: Sequence[str] | Mapping[str, object] | None = None,
    init: str | Path | Run | None = None,
    name: str | None = None,
    runs: Path | str = "runs",
    resume: bool = False,
    skip_damaged: bool = False,
    trust_code: bool = False,
    inline: bool = False,
    verbose: bool = False,
    quiet: bool = False,
    **options: Unpack[TrainOptions],
) -> Run:
    """Train an image classifier.

    The weights are the same, to the last bit, on any number of processes and after every stop. Each
    run has a folder of its own, which is never overwritten.

    Args:
        what: Name of a recipe, a recipe file (.toml), the folder of a run, or a folder that holds
            one folder of images for each class. Default: the recipe of the run in `init`, or the
            images in `data`, or digits.
        data: Folder of the dataset. Or the dataset itself, which is written once to a cache:
            {"train": (images, labels), "test": (images, labels), "classes": names}, with arrays
            uint8 [N, H, W, C] and integers [N], or iterables of (image, label). The labels of
            multi-label data are an array of 0 and 1, [N, classes].
        settings: Other settings of the recipe to change, as {"optimizer.momentum": 0.8} or
            ["optimizer.momentum=0.8"]. `lockstep show RECIPE` prints all of them.
        init: Start from the weights of a run, of a .safetensors file, or of a state_dict that
            torch.save wrote; or of such a file at https://...#sha256=HEX, which is downloaded once.
        name: Name of the run. Default: the name of the recipe or of the folder of images, and a
            number.
        runs: Folder that holds the runs.
        resume: Continue a run from its last checkpoint. `keep`, `folds`, `eval_every`,
            `save_every` and `timeout` are those of the last session unless they are given. A
            complete run is left unchanged.
        skip_damaged: Leave out images that cannot be read. The run's result and log list them.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
        inline: Compute in this program, in one process, so that a debugger works. It is not
            restarted after a failure.
        verbose: Also print what otherwise only log.txt has: all settings, and how they were chosen.
        quiet: Print only errors. log.txt still has everything.
        **options: Settings by name: `epochs`, `lr`, `seed`, `towers`, `processes`, `device` and so
            on; None leaves the default. `model` and `dataset` also take a function of yours, if it
            is defined in a file. docs/settings.md describes all options.

    Returns:
        The run. After Ctrl-C, or the interrupt of a notebook, its state is saved, `run.complete` is
        False, and `train(run, resume=True)` continues it. Under an outer launcher (Ray Train,
        torchrun, srun, mpirun), all programs call this function with the same arguments, and each
        starts one worker process. Process 0 returns the run. The other programs get None, because
        only the host of process 0 has the folder. The type is Run for all of them.

    Raises:
        LockstepError: Anything that you can fix, such as an unknown option, missing data or a loss
            that is not finite.
        KeyboardInterrupt: Ctrl-C before the first step, or a second Ctrl-C, which ends the run
            without saving.

    Examples:
        >>> run = lockstep.train("digits", epochs=20, seed=1, settings={"optimizer.momentum": 0.8})
        >>> print(run.accuracy, run.path)
        >>> run = lockstep.train("photos/", name="mine")
        >>> run = lockstep.train(run, resume=True)  # after Ctrl-C
    """
    world = outer_world()
    changes = changes_of(settings, options)
    folder = data if isinstance(data, str | Path) else None
    placement = placement_of({**options, "init": init, "data": folder})
    if world.process == 0:
        for library in placement.log_to:
            require_extra(library, (library,))
    with muted(quiet or world.process != 0):
        spec = train_spec(
            what,
            changes,
            placement,
            world,
            data=data if folder is None else None,
            trust_code=trust_code,
            skip_damaged=skip_damaged,
            name=name,
            runs=given(runs),
            resume=resume,
        )
        path: Path | None = spec.path
        if spec.resume and Run(spec.path).result() is not None:
            logger.warning(f"{path} is complete: nothing to resume")
        else:
            path = run_job(spec, quiet, inline, verbose).run
        if world.process != 0:
            return None  # type: ignore[return-value]
        if path is None:
            raise KeyboardInterrupt  # before there was a run
        return Run.open(path.absolute())
