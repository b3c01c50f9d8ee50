"""`lockstep bench`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli.options import Inline, Json, options_from, placement_of, require_new_file

if TYPE_CHECKING:
    from lockstep.bench.analysis import Record
    from lockstep.config.placement import Placement
    from lockstep.config.recipe import Recipe
    from lockstep.jobs.specs import BenchMode

_RECIPE = ("tower_batch", "precision", "portable", "model", "dataset")


@options_from(
    recipe=_RECIPE,
    placement=("processes", "reduction", "device", "data", "cache_limit"),
    defaults={"processes": "number of GPUs; on CPU cores / threads. Smaller numbers are measured too, unless --only"},
)
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="[RECIPE|FILE.toml|RUN|PHOTOS]",
            help="Name of a recipe, a recipe file, the folder of a run, or a folder of images.",
        ),
    ] = "cifar10-tutorial",
    only: Annotated[bool, typer.Option("--only", help="Measure --processes only, not 1 to --processes.")] = False,
    steps: Annotated[int, typer.Option(min=2, help="Number of timed steps.")] = 50,
    warmup: Annotated[int, typer.Option(min=0, help="Number of untimed steps before the timed ones.")] = 10,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Leave out input: random images, made once. Needs no files.")
    ] = False,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="Leave out backward pass, exchange and update.")
    ] = False,
    independent: Annotated[
        bool, typer.Option("--independent", help="Leave out exchange: every process adds its own towers only.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change any setting of the recipe. Repeatable."),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print the table only, without analysis, verdict and prediction.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page of the measurement, a new file.")
    ] = None,
    link: Annotated[
        float, typer.Option(help="For the prediction: GB/s between devices in each direction. 12.5 is 100 Gbit/s.")
    ] = 12.5,
    latency: Annotated[float, typer.Option(min=0, help="For the prediction: microseconds per message.")] = 10.0,
    inline: Inline = False,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Measure training speed on 1 to N processes, and what limits it.

    Each process computes one tower of the recipe's size. The table has a row per number of processes. The columns
    after "ms a step" split a step of process 0 into its parts.

    The last number of processes is then measured again on constant input and without exchange. What each of these
    saves, and how near computing comes to this machine's speed at matrix products, gives the verdict. A
    latency-bandwidth model predicts the speed of 8, 64 and 512 devices.

    With --synthetic, --forward-only or --independent only the table is printed. No run is written. The command starts
    its own processes: do not start it with torchrun, srun or mpirun.

    \b
    Examples:
      lockstep bench cifar10-tutorial --precision bfloat16 --report speed.html
      lockstep bench cifar10-tutorial --synthetic                  the table without the cost of input
      lockstep bench mnist --link 1.25 --latency 50                predict for a slower network
      lockstep bench mnist --processes 2 --only --steps 5 --forward-only --json
    """
    from lockstep import numerics
    from lockstep.api.specs import data_for, fitted, fixed_precision, placed, subject_of
    from lockstep.bench.analysis import Link, summarise
    from lockstep.config import overrides
    from lockstep.errors import LockstepError
    from lockstep.launch.submit import capacity
    from lockstep.launch.world import World

    if World.from_environment().joined:
        raise LockstepError("lockstep bench starts its own processes: start it without torchrun, srun or mpirun")
    if link <= 0:
        raise LockstepError(f"--link: got {link:g}: give GB/s above 0, as in 12.5 for 100 Gbit/s")
    if report is not None:
        require_new_file("--report", report)
    switches: dict[BenchMode, bool] = {"synthetic": synthetic, "forward-only": forward_only, "independent": independent}
    modes = tuple(mode for mode, chosen in switches.items() if chosen)
    changes = overrides.parse(settings or [], {name: options[name] for name in _RECIPE})
    placement = placement_of(options)
    subject = subject_of(what, changes, placement.data)
    recipe, _ = fitted(subject)
    numerics.prepare(recipe.threads_per_tower)  # The next line may import torch.
    recipe, _ = fixed_precision(recipe, placement.device)
    placement = placed(recipe, placement.replace(data=data_for(subject)))
    most = placement.processes or capacity(recipe, placement)

    def measure(count: int, modes: "tuple[BenchMode, ...]", recipe: "Recipe" = recipe) -> "Record":
        return _measure(recipe, placement.on(count), steps, warmup, modes, inline)

    measurements: list[Record] = []
    for count in range(most if only else 1, most + 1):
        measurements.append(measure(count, modes))
        if not json_output:
            _print_row(measurements)
    ablations: list[Record] = []
    if not modes and not table:
        ablations.append(measure(most, ("synthetic",)))
        if most > 1:
            ablations.append(measure(most, ("synthetic", "independent")))
    price = None
    if ablations and recipe.arithmetic == "portable":
        native = measure(most, (), recipe.replace(arithmetic="native"))
        price = measurements[-1]["s_per_step_median"] / native["s_per_step_median"]
    summary = summarise(measurements, ablations, placement.reduction, Link(latency * 1e-6, link * 1e9))
    summary["portable_price"] = price
    if report is not None:
        from lockstep.api.report import Report
        from lockstep.pages.bench import page

        Report(page(summary)).save(report)
    if json_output:
        print(json.dumps(summary))
    elif ablations:
        from lockstep.bench.table import closing

        print(*closing(summary), sep="\n")
        if price is not None:
            print(f"\na step takes {price:.2f} times as long in portable arithmetic as in native (--no-portable)")


def _measure(
    recipe: "Recipe", placement: "Placement", steps: int, warmup: int, modes: "tuple[BenchMode, ...]", inline: bool
) -> "Record":
    """Measure in new processes, and return their record. Raises: typer.Exit if they are stopped."""
    from lockstep.config import overrides
    from lockstep.jobs.specs import BenchSpec
    from lockstep.launch.submit import submit
    from lockstep.launch.workers import Output
    from lockstep.launch.world import World

    recipe = overrides.make(recipe.model_dump(mode="json"), {"towers": placement.processes})
    spec = BenchSpec(recipe=recipe, placement=placement, steps=steps, warmup=warmup, modes=modes)
    outcome = submit(spec, Output(), World(), inline=inline)
    if outcome.record is None:
        raise typer.Exit(outcome.code)
    return outcome.record


def _print_row(measurements: "list[Record]") -> None:
    """Print the table's row of the last measurement, with the head of the table before the first row."""
    from lockstep.bench.analysis import with_ratios
    from lockstep.bench.table import head, row

    lines = head(measurements[0]) if len(measurements) == 1 else []
    print(*lines, row(with_ratios(measurements[-1], measurements[0])), sep="\n", flush=True)
