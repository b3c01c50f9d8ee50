"""`lockstep bench`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.commands.shell import SettingsOption, record_of
from lockstep.commands.to_spec import bench_spec, divided
from lockstep.config.overrides import make
from lockstep.launch.submit import capacity, require_alone
from lockstep.words import plural

Record = dict[str, Any]

FIELDS = ("tower_batch", "precision", "portable", "model", "dataset", "reduction")
_LARGE_SHARE = 0.2  # share of a step from which input or exchange limits it
_COLUMNS = "processes images/s   +/- speed-up efficiency   MiB ms a step: data compute exchange report update"


def bench(
    what: Annotated[str, typer.Argument(metavar="[RECIPE|FILE.toml|RUN|PHOTOS]")] = "cifar10-tutorial",
    only: bool = False,
    steps: Annotated[int, typer.Option(min=2)] = 50,
    warmup: Annotated[int, typer.Option(min=0)] = 10,
    settings: SettingsOption = None,
    data: Path | None = None,
    processes: Annotated[int | None, typer.Option(min=1)] = None,
    device: str = "auto",
    trust_code: bool = False,
    **options: Any,
) -> Iterator[str | Record]:
    """Measure training speed on 1 to N processes, and what limits it.

    Each process computes one tower of the recipe's size. A row has images/s with their standard error, speed-up and
    efficiency against one process, the most memory that a process held, and the mean milliseconds of a step. A step of
    process 0 is split into its parts; "exchange" includes waiting for other processes. All images have full size, and
    no layer is frozen. The last line says what limits the last number of processes.

    No run is written. The command starts its own processes: do not start it with torchrun, srun or mpirun.

    Examples:
      lockstep bench cifar10-tutorial --precision bfloat16
      lockstep bench digits --no-portable                          the cost of portable arithmetic: compare
      lockstep bench mnist --processes 2 --only --steps 5 --json

    Args:
        what: Name of a recipe, a recipe file, the folder of a run, or a folder of images.
        only: Measure --processes only, not 1 to --processes.
        steps: Number of timed steps.
        warmup: Number of untimed steps before the timed ones.
        settings: Change any recipe setting; `lockstep show` lists them.
        data: Folder of the dataset. Default: LOCKSTEP_DATA, then the user's cache, then a download.
        processes: Number of processes. Default: number of GPUs; on CPU cores / threads. Smaller numbers are measured
            too, unless --only.
        device: cpu, cuda, certain GPUs as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute the model and dataset of your own that a file or a run names.
        **options: Those of `FIELDS`.
    """
    require_alone("bench")
    changes, placement = divided(settings, {**options, "data": data, "processes": processes, "device": device})
    spec = bench_spec(what, changes, placement, trust_code, steps=steps, warmup=warmup)
    recipe, placement = spec.recipe, spec.placement
    most = placement.processes or capacity(recipe, placement)
    records: list[Record] = []
    for count in range(most if only else 1, most + 1):
        towers = make(recipe.model_dump(mode="json"), {"towers": count})
        record = record_of(spec.replace(recipe=towers, placement=placement.on(count)))
        facts = {name: record.pop(name) for name in ("device", "versions")}
        records.append(record | _ratios(record, records[0] if records else record))
        if len(records) == 1:
            yield f"{recipe.name}, {recipe.precision}, {record['batch'] // count} images a process; {facts['device']}"
            yield _COLUMNS
        yield _row(records[-1])
    limit = verdict(records[-1]["split"])
    yield f"on {plural(most, 'process')}, {limit}"
    subject = {"recipe": recipe.name, "precision": recipe.precision, "threads": recipe.threads_per_tower}
    yield {**subject, **facts, "records": records, "verdict": limit}


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
