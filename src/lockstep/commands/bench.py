"""`lockstep bench`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lockstep.commands.options import Json, Set, TrustCode, options_from, placement_of, present
from lockstep.commands.specs import data_for, fitted, placed, subject_of, with_precision
from lockstep.config import overrides
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.jobs.context import Output
from lockstep.jobs.specs import BenchSpec
from lockstep.launch.submit import capacity, require_alone, submit
from lockstep.words import plural

Record = dict[str, Any]

_RECIPE = ("tower_batch", "precision", "portable", "model", "dataset")
_LARGE_SHARE = 0.2  # share of a step from which input or exchange limits it
_COLUMNS = "processes images/s   +/- speed-up efficiency   MiB ms a step: data compute exchange report update"


@options_from(
    recipe=_RECIPE,
    placement=("processes", "reduction", "device", "data"),
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
    settings: Set = None,
    trust_code: TrustCode = False,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Measure training speed on 1 to N processes, and what limits it.

    Each process computes one tower of the recipe's size. A row has images/s with their standard error, speed-up and
    efficiency against one process, the most memory that a process held, and the mean milliseconds of a step. A step of
    process 0 is split into its parts; "exchange" includes waiting for other processes. All images have full size, and
    no layer is frozen. The last line says what limits the last number of processes.

    No run is written. The command starts its own processes: do not start it with torchrun, srun or mpirun.

    \b
    Examples:
      lockstep bench cifar10-tutorial --precision bfloat16
      lockstep bench digits --no-portable                          the cost of portable arithmetic: compare
      lockstep bench mnist --processes 2 --only --steps 5 --json
    """
    require_alone("bench")
    changes = overrides.parse(settings or [], {name: options[name] for name in _RECIPE})
    placement = placement_of(options)
    subject = subject_of(what, changes, placement.data, trust_code)
    recipe = fitted(subject)
    recipe = with_precision(subject, recipe, placement.device)
    placement = placed(recipe, placement.replace(data=data_for(subject)))
    most = placement.processes or capacity(recipe, placement)
    records: list[Record] = []
    for count in range(most if only else 1, most + 1):
        record = _measure(recipe, placement.on(count), steps, warmup)
        facts = {name: record.pop(name) for name in ("device", "versions")}
        records.append(record | _ratios(record, records[0] if records else record))
        if not json_output:
            if len(records) == 1:
                each = record["batch"] // count
                print(f"{recipe.name}, {recipe.precision}, {each} images a process; {facts['device']}\n{_COLUMNS}")
            print(_row(records[-1]), flush=True)
    limit = verdict(records[-1]["split"])
    if json_output:
        subject_facts = {"recipe": recipe.name, "precision": recipe.precision, "threads": recipe.threads_per_tower}
        present([], {**subject_facts, **facts, "records": records, "verdict": limit})
    else:
        print(f"\non {plural(most, 'process')}, {limit}")


def verdict(split: Mapping[str, float]) -> str:
    """Return what limits a step, in a sentence. `split` is the seconds of its parts."""
    total = sum(split.values())
    data, exchange = split["data"], split["communication"]
    if data >= max(_LARGE_SHARE * total, exchange):
        return f"input limits a step: it takes {_part(data, total)}"
    if exchange >= _LARGE_SHARE * total:
        return (
            f"exchange limits a step: with waiting for other processes it takes {_part(exchange, total)}; a larger "
            f"--tower-batch spreads it over more images"
        )
    return f"computing limits a step: input and exchange take {_part(data + exchange, total)}"


def _part(seconds: float, total: float) -> str:
    return f"{seconds * 1e3:.1f} of {total * 1e3:.1f} ms ({seconds / total:.0%})"


def _measure(recipe: Recipe, placement: Placement, steps: int, warmup: int) -> Record:
    """Measure in new processes, and return their record. Raises: typer.Exit if they are stopped."""
    recipe = overrides.make(recipe.model_dump(mode="json"), {"towers": placement.processes})
    spec = BenchSpec(recipe=recipe, placement=placement, steps=steps, warmup=warmup)
    outcome = submit(spec, Output())
    if outcome.record is None:
        raise typer.Exit(outcome.code)
    return outcome.record


def _ratios(record: Record, first: Record) -> Record:
    """Return the speed-up and the efficiency against `first`; None unless that is of one process."""
    speed_up = record["images_per_s"] / first["images_per_s"] if first["processes"] == 1 else None
    return {"speed_up": speed_up, "efficiency": speed_up and speed_up / record["processes"]}


def _row(record: Record) -> str:
    """Return the line of one number of processes."""
    speed_up, efficiency = record["speed_up"], record["efficiency"]
    scaling = f"{'-':>8} {'-':>10}" if speed_up is None else f"{speed_up:>8.2f} {efficiency:>10.1%}"
    ms = {part: f"{seconds * 1e3:.1f}" for part, seconds in record["split"].items()}
    return (
        f"{record['processes']:>9} {record['images_per_s']:>8,.0f} {record['images_per_s_error']:>5,.0f} {scaling} "
        f"{max(record['peak_memory_bytes']) / 2**20:>5,.0f} {record['s_per_step'] * 1e3:>9.1f}: "
        f"{ms['data']:>4} {ms['compute']:>7} {ms['communication']:>8} {ms['report']:>6} {ms['update']:>6}"
    )
