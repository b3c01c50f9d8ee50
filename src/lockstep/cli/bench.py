"""lockstep bench."""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import STARTED, Data, Device, Json


def bench(
    what: Annotated[
        str, typer.Argument(metavar="[RECIPE|FILE.toml|RUN]", help="A recipe's name, a recipe file, or a run's folder.")
    ] = "cifar10-tutorial",
    processes: Annotated[
        int | None, typer.Option(min=1, help="Measure 1 to so many. Default: the GPUs, or cores / threads.")
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Measure --processes alone, not 1 to so many.")] = False,
    steps: Annotated[int, typer.Option(min=2, help="Steps to time.")] = 50,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before, that are not timed.")] = 10,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Constant input, made once: no input to wait for, no files needed.")
    ] = False,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="No backward pass, no exchange, no update.")
    ] = False,
    independent: Annotated[
        bool, typer.Option("--independent", help="No exchange: every process trains for itself.")
    ] = False,
    tower_batch: Annotated[int | None, typer.Option(min=1, help="Images a step for each tower.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change any setting of the recipe.")
    ] = None,
    reduction: Annotated[str, typer.Option(help="tree, central, or allreduce (with --set exact=false).")] = "tree",
    device: Device = "auto",
    data: Data = None,
    json_output: Json = False,
) -> None:
    """Measure training speed on 1 to N processes, each with one tower of the recipe's size.

    The columns after "ms a step" say where its time goes in process 0; the modes take it apart further. Nothing is
    written: what a mode leaves is no trained network. Starts its own processes, so not for torchrun.

    \b
    Examples:
      lockstep bench cifar10-tutorial --precision bfloat16
      lockstep bench cifar10-tutorial --synthetic                  without the cost of input
      lockstep bench cifar10-tutorial --synthetic --independent    and without exchange
      lockstep bench mnist --processes 2 --only --steps 5 --forward-only --json
    """
    from lockstep import overrides
    from lockstep.errors import LockstepError
    from lockstep.launch import launch, places
    from lockstep.placement import Placement
    from lockstep.recipe import validated
    from lockstep.request import recipe_of
    from lockstep.work import Job, joins_outer_launch

    if joins_outer_launch():
        raise LockstepError("lockstep bench starts its own processes: run it without torchrun, on one host")
    modes = {"synthetic": synthetic, "forward-only": forward_only, "independent": independent}
    recipe, _ = recipe_of(what, overrides.parse(settings or [], {"tower_batch": tower_batch, "precision": precision}))
    fields: dict[str, Any] = {"device": device, "reduction": reduction, "data": data.absolute() if data else None}
    most = processes or places(recipe, validated(Placement, fields))
    records = []
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        for count in range(most if only else 1, most + 1):
            job = Job(
                command="bench",
                recipe=overrides.make(recipe.model_dump(mode="json"), {"towers": count}),
                placement=validated(Placement, {**fields, "processes": count}),
                path=Path(folder) / f"{count}.json",
                steps=steps,
                warmup=warmup,
                modes=tuple(name for name, on in modes.items() if on),
                started=STARTED,
            )
            if code := launch(job):
                raise typer.Exit(code)
            records.append(json.loads(job.path.read_text()))
            if not json_output:
                _show(records)
    if json_output:
        print(json.dumps(records))


def _show(records: list[dict[str, Any]]) -> None:
    """The table's next row; its head before the first."""
    first, record = records[0], records[-1]
    if len(records) == 1:
        modes = f", {' and '.join(record['modes'])}" if record["modes"] else ""
        per = record["batch"] // record["towers"]
        print(f"{record['recipe']}, {record['precision']}, {per} images a process{modes}; {record['device']}")
        print(
            "processes  images/s    +/-  jitter  speed-up  efficiency     ms a step: data compute communication update"
        )
    speed_up = record["images_per_s"] / first["images_per_s"]
    scaling = (
        f"{speed_up:>9.2f} {speed_up / record['processes']:>11.1%}"
        if first["processes"] == 1
        else f"{'-':>9} {'-':>11}"
    )
    split = record["split"]
    print(
        f"{record['processes']:>9} {record['images_per_s']:>9,.0f} {record['images_per_s_error']:>6,.0f} "
        f"{record['images_per_s_jitter']:>7,.0f} {scaling} "
        f"{record['s_per_step'] * 1e3:>12.1f}: {split['data'] * 1e3:>4.1f} {split['compute'] * 1e3:>7.1f} "
        f"{split['communication'] * 1e3:>13.1f} {split['report'] * 1e3:>6.1f} {split['update'] * 1e3:>6.1f}",
        flush=True,
    )
