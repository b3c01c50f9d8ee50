"""lockstep bench."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli.options import Data, Device, Json

if TYPE_CHECKING:
    from lockstep.config.placement import Placement
    from lockstep.config.recipe import Recipe


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
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16 (or fp32, bf16, fp16).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change any setting of the recipe.")
    ] = None,
    reduction: Annotated[
        str, typer.Option(help="tree, central, central-cpu, or allreduce (with --set exact=false).")
    ] = "tree",
    device: Device = "auto",
    data: Data = None,
    table: Annotated[
        bool, typer.Option("--table", help="The table alone: no parts of a step, verdict and prediction.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw images/s and efficiency by processes.")
    ] = None,
    link: Annotated[float, typer.Option(help="Prediction: GB/s each way between devices; 12.5 is 100 Gbit/s.")] = 12.5,
    latency: Annotated[float, typer.Option(min=0, help="Prediction: microseconds a message takes.")] = 10.0,
    json_output: Json = False,
) -> None:
    """Measure training speed on 1 to N processes, each with one tower of the recipe's size, and say what limits it.

    The columns after "ms a step" say where its time goes in process 0. Then the last number of processes is measured
    again on constant input and without exchange: what that saves, and how far computing is from this machine's
    matrix products, is the verdict. A latency-bandwidth model predicts 8, 64 and 512 devices. With a mode (--synthetic,
    --forward-only, --independent) there is the table alone. No run is written: what a mode leaves is no trained
    network. Starts its own processes, so not for torchrun.

    \b
    Examples:
      lockstep bench cifar10-tutorial --precision bfloat16 --plot speed.svg
      lockstep bench cifar10-tutorial --synthetic                  the table without the cost of input
      lockstep bench mnist --link 1.25 --latency 50                predict for a slower network
      lockstep bench mnist --processes 2 --only --steps 5 --forward-only --json
    """
    from lockstep.bench.predict import Link
    from lockstep.bench.report import report
    from lockstep.cli.resolve import fixed_precision, recipe_of
    from lockstep.config import overrides
    from lockstep.config.placement import Placement
    from lockstep.errors import LockstepError
    from lockstep.processes.launch import capacity
    from lockstep.processes.world import World
    from lockstep.settings import validated

    if World.from_environment().joined:
        raise LockstepError("lockstep bench starts its own processes: run it alone, without torchrun, srun or mpirun")
    if link <= 0:
        raise LockstepError(f"--link: got {link:g}: give GB/s above 0, as in 12.5 for 100 Gbit/s")
    if plot is not None:
        _check_plot(plot)
    on = {"synthetic": synthetic, "forward-only": forward_only, "independent": independent}
    modes = tuple(name for name, chosen in on.items() if chosen)
    recipe, _ = recipe_of(what, overrides.parse(settings or [], {"tower_batch": tower_batch, "precision": precision}))
    recipe, _ = fixed_precision(recipe, device, None)
    fields: dict[str, Any] = {"device": device, "reduction": reduction, "data": data.absolute() if data else None}
    placement = validated(Placement, {**fields, "processes": processes})
    most = processes or capacity(recipe, placement)

    def measure(count: int, modes: tuple[str, ...]) -> dict[str, Any]:
        return _measure(recipe, placement.on(count), steps, warmup, modes)

    records: list[dict[str, Any]] = []
    for count in range(most if only else 1, most + 1):
        records.append(measure(count, modes))
        if not json_output:
            _show(records)
    rest = [] if modes or table else [("synthetic",), ("synthetic", "independent")][: 1 if most == 1 else 2]
    whole = report(records, [measure(most, left) for left in rest], reduction, Link(latency * 1e-6, link * 1e9))
    if plot is not None:
        _draw(plot, whole)
    if json_output:
        print(json.dumps(whole))
    elif rest:
        from lockstep.bench.table import closing

        print(*closing(whole), sep="\n")


def _measure(
    recipe: "Recipe", placement: "Placement", steps: int, warmup: int, modes: tuple[str, ...]
) -> dict[str, Any]:
    """One job, on processes of its own. Raises: typer.Exit if it fails or is stopped."""
    from lockstep.config import overrides
    from lockstep.config.jobs import BenchJob
    from lockstep.processes.launch import launch

    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        job = BenchJob(
            recipe=overrides.make(recipe.model_dump(mode="json"), {"towers": placement.processes}),
            placement=placement,
            record=Path(folder) / "record.json",
            steps=steps,
            warmup=warmup,
            modes=modes,
        )
        if code := launch(job):
            raise typer.Exit(code)
        record: dict[str, Any] = json.loads(job.record.read_text())
        return record


def _show(records: list[dict[str, Any]]) -> None:
    """The table's next row; its head before the first."""
    from lockstep.bench.report import with_ratios
    from lockstep.bench.table import head, row

    lines = head(records[0]) if len(records) == 1 else []
    print(*lines, row(with_ratios(records[-1], records[0])), sep="\n", flush=True)


def _check_plot(path: Path) -> None:
    """Before anything is measured."""
    from lockstep.errors import ENVIRONMENT, LockstepError

    if path.suffix != ".svg":
        raise LockstepError(f"--plot {path}: only SVG is drawn: give a name that ends in .svg")
    if not path.absolute().parent.is_dir():
        raise LockstepError(f"--plot {path}: there is no folder {path.parent}: make it first", ENVIRONMENT)


def _draw(path: Path, whole: dict[str, Any]) -> None:
    """Write the chart. Raises: LockstepError."""
    from lockstep.bench.chart import chart
    from lockstep.errors import ENVIRONMENT, LockstepError

    try:
        path.write_text(chart(whole["records"]))
    except OSError as error:
        raise LockstepError(f"--plot {path}: cannot be written: {error.strerror or error}", ENVIRONMENT) from None
