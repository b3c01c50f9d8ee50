"""lockstep eval."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lockstep.cli.options import STARTED, Data, Device, Json, Processes


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    weights: Annotated[
        Literal["ema", "raw"] | None, typer.Option(help="Default: ema if the run keeps an average, else raw.")
    ] = None,
    split: Annotated[str, typer.Option(help="test or train (undistorted), or another the data set has.")] = "test",
    data: Data = None,
    processes: Processes = None,
    device: Device = "auto",
    json_output: Json = False,
) -> None:
    """Evaluate the newest whole checkpoint of a run: every example of a split exactly once, not augmented.

    \b
    Examples:
      lockstep eval runs/digits-1
      lockstep eval runs/digits-1 --weights raw --split train --json
    """
    from lockstep.launch import launch
    from lockstep.placement import Placement
    from lockstep.recipe import validated
    from lockstep.run import Run
    from lockstep.work import Job

    recipe = Run.open(run).recipe()
    fields = {"device": device, "processes": processes, "data": data.absolute() if data else None}
    job = Job(
        command="eval", recipe=recipe, placement=validated(Placement, fields), path=run,
        weights=weights, split=split, json_output=json_output, started=STARTED,
    )  # fmt: skip
    raise typer.Exit(launch(job))
