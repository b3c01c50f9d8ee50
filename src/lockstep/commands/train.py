"""lockstep.train, and `lockstep train`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from lockstep.commands.shell import Quiet, SettingsOption, run_job
from lockstep.commands.to_placement import placement_of
from lockstep.commands.to_recipe import changes_of, with_stored_data
from lockstep.commands.to_spec import train_spec
from lockstep.config.recipe import Recipe
from lockstep.files import given
from lockstep.launch.submit import outer_world
from lockstep.messages import logger, muted
from lockstep.runs.run import Run

# None in the processes of an outer launch other than process 0. Typed as Any, as typeshed does for
# such a case: all other callers get a Run, and need not check for None.
NoneElsewhere: TypeAlias = Any


def train(
    what: Annotated[
        str | Path | Recipe | Run | None, typer.Argument(metavar="[RECIPE|FILE.toml|RUN|PHOTOS]")
    ] = None,
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    settings: SettingsOption = None,
    init: Annotated[str | Path | Run | None, typer.Option(metavar="FILE|RUN|URL")] = None,
    name: str | None = None,
    runs: Path | str = Path("runs"),
    resume: bool = False,
    skip_damaged: bool = False,
    trust_code: bool = False,
    inline: bool = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
    quiet: Quiet = False,
    **options: Any,
) -> Run | NoneElsewhere:
    """Train a classifier in worker processes.

    Every run has its own folder, which is never overwritten. --help-all shows all options.

    Examples:
      lockstep train                                digits, on up to 4 cores
      lockstep train mnist --precision bfloat16 --data ~/mnist
      lockstep train cifar10-tutorial --towers 2 --steps 2000 --name try
      lockstep train digits --set optimizer.momentum=0.8 --set schedule.kind=constant
      lockstep train photos/                        your images, in photos/cats, photos/dogs, ...
      lockstep train photos/ --model timm:resnet50  the same, by the features of another network
      lockstep train --init runs/try --epochs 20    a new run from the final weights of another
      lockstep train runs/try --resume              after Ctrl-C, on any number of processes
      lockstep show digits > mine.toml; lockstep train mine.toml

    Args:
        what: A recipe's name, a recipe file, a run's folder, or a folder with a folder of images
            for each class. Default: the recipe of --init RUN, or the PHOTOS in --data, or digits.
        data: Folder of the dataset. Or the dataset itself, which is written once to a cache:
            {"train": (images, labels), "test": (images, labels), "classes": names}, with arrays
            uint8 [N, H, W, C] and integers [N], or iterables of (image, label). With several
            labels, they are [N, classes] of 0 and 1.
        settings: Change any recipe setting; `lockstep show RECIPE` prints them.
        init: Start from the weights of a run, a .safetensors file, or a state_dict that torch.save
            wrote; or of such a file at https://...#sha256=HEX, which is downloaded once.
        name: Name of the run. Default: the recipe's name, or that of the folder of
            images, and a number.
        runs: Folder that contains the runs.
        resume: Continue from the last checkpoint. Unless given, keep, eval_every, save_every and
            timeout are those of the last session. A finished run is left unchanged.
        skip_damaged: Leave out the images of a folder that cannot be read. The run's result and log
            list them.
        trust_code: Execute the model and dataset of your own that a file or a run names.
        inline: Compute one process in this program, for debuggers. It is not restarted.
        verbose: Print also what else only log.txt has: all settings, and how they were chosen.
        quiet: Print only errors, and the record of --json. log.txt still has everything.
        **options: The other options of `lockstep train`, with underscores: processes, device,
            epochs, steps, lr, seed, towers, model, dataset, precision, eval_every and so on. None
            is as if it were not given. A model of your own is "package.module:function", or the
            function itself if it is in a file.

    In Python:

        run = lockstep.train("digits", epochs=20, seed=1, settings={"optimizer.momentum": 0.8})
        print(run.accuracy, run.path, run.metrics()[-1])
        run = lockstep.train(run, resume=True)  # after Ctrl-C; a complete run stays as it is

    The weights have the same bits as those of the command line. The caller may be a script, with or
    without `if __name__ == "__main__"`, a notebook or a thread. Ctrl-C, or the interrupt of a
    notebook, saves the state and returns the run, whose `complete` is then False. A second Ctrl-C,
    a second or more later, ends without saving. In a program that an outer launcher starts several
    times (Ray Train, torchrun, srun, mpirun), all call this function with the same arguments. Each
    program then starts one worker process, and these train one run together.

    Returns:
        The run. In an outer launch, process 0 returns the run, and the others return None: only
        process 0's host has the run's folder.

    Raises:
        LockstepError: anything that you can fix, such as an unknown option, missing data or a loss
            that is not finite.
        KeyboardInterrupt: Ctrl-C before the first step, or a second Ctrl-C.
    """
    world = outer_world()
    changes = changes_of(settings, options)
    folder = data if isinstance(data, str | Path) else None
    placement = placement_of({**options, "init": init, "data": folder})
    if data is not None and folder is None:
        changes = with_stored_data(data, what, changes, placement.init)
    with muted(quiet or world.process != 0):
        spec = train_spec(
            what,
            changes,
            placement,
            world,
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
            return None
        if path is None:
            raise KeyboardInterrupt  # before there was a run
        return Run.open(path.absolute())
