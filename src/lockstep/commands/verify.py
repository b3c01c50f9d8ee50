"""`lockstep verify`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lockstep.commands.of_run import fields_of_run
from lockstep.commands.shell import AnyRun, record_of
from lockstep.errors import CRASH, LockstepError
from lockstep.files import Record
from lockstep.jobs.specs import VerifySpec
from lockstep.text import plural

_SHOWN = 12  # tensors that are listed; --json lists all

_ALIKE = (
    "this machine is like that of the run. Suspect a changed file, or the memory of one of them"
)
_WHAT = {
    "checkpoints": "the checkpoint after {step} steps",
    "weights_sha256": "the SHA-256 of the result's weights, after {step} steps,",
    "model.safetensors": "model.safetensors, of the weights after {step} steps,",
}


def verify(
    run: AnyRun,
    start: Annotated[int | None, typer.Option("--from", metavar="STEP", min=0)] = None,
    data: Path | None = None,
    processes: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
) -> Iterator[str | Record]:
    """Compute steps of a run again, and compare every bit.

    By default these are the steps between the newest two valid checkpoints. Compared are the
    contents of checkpoints and of model.safetensors, and the SHA-256 in result.json. The number of
    processes may be another one. The folder is only read, so it may be a copy, or a run that is
    being trained.

    The exit code is 0 if all bits are the same, and 1 if some differ. The first recorded step that
    differs is then named, with the tensors, and what is different about this machine.

    Examples:
      lockstep verify runs/digits-1
      lockstep verify runs/big --from 400
      lockstep verify downloaded/run --from 0 --processes 4 --json

    Args:
        run: A run's folder. Nothing is written there.
        start: Start from this step, or from the last valid checkpoint before it, and end at the
            next checkpoint. 0 computes the initial state. Default: the second newest checkpoint.
        data: Folder of the dataset. Default: that of training.
        processes: Number of processes. Default: as in training.
        device: cpu, cuda, certain GPUs as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute the model and dataset of your own that a file or a run names.
    """
    fields = fields_of_run(run, trust_code, data=data, processes=processes, device=device)
    if not fields["recipe"].exact:
        raise LockstepError(
            f"{run} has exact = false in its recipe, so a second computation has other bits: only "
            "exact runs can be verified"
        )
    record = record_of(VerifySpec(**fields, start=start))
    yield record
    yield from lines_of(record)
    if not record["same"]:
        raise typer.Exit(CRASH)


def lines_of(record: Record) -> Iterator[str]:
    """Yield the result in words."""
    counts, same = record["compared"], record["same"]
    compared = [plural(counts["checkpoints"], "checkpoint")] if "checkpoints" in counts else []
    if "weights_sha256" in counts:
        compared.append("the SHA-256 of the result")
    if "model.safetensors" in counts:
        compared.append("model.safetensors")
    verdict = "the same bits" if same else "not the same bits"
    yield f"steps {record['from_step']} to {record['to_step']} replayed: {verdict}"
    yield f"  compared  {', '.join(compared)}" + (
        "" if same else f"; {len(record['differences'])} differ"
    )
    if same:
        return
    first = record["differences"][0]
    yield f"  first     {_WHAT[first['what']].format(step=first['step'])} differs"
    yield f"            recorded {first['recorded']}, replayed {first['replayed']}"
    for difference in record["differences"]:
        tensors = difference.get("tensors")
        if not tensors:
            continue
        yield f"  tensors   {len(tensors)} differ after {difference['step']} steps"
        for name in tensors[:_SHOWN]:
            yield f"            {name}"
        if len(tensors) > _SHOWN:
            yield f"            and {len(tensors) - _SHOWN} more: --json lists all"
    machine = record["machine"] or {"probe_equal": None, "changes": []}
    probes = {True: "the arithmetic probe is equal", False: "the arithmetic probe differs"}
    probe = probes.get(machine["probe_equal"], "no arithmetic probe is recorded")
    yield f"  machine   {probe}: {'; '.join(machine['changes']) or _ALIKE}"
