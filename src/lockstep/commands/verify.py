"""lockstep verify."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.commands.options import EVERYWHERE, Code, Inline, Json, options_from, placement_of
from lockstep.errors import CRASH, printable
from lockstep.words import plural

_SHOWN = 12  # tensors that are listed; --json lists all
_MAX_ULP = 1_000_000  # A larger difference, in units in the last place (ulp), is not printed exactly.

_ALIKE = "this machine is like that of the run. Suspect a changed file, or the memory of one of them"
_WHAT = {
    "digests": "the digest of the state after {step} steps",
    "checkpoints": "the checkpoint after {step} steps",
    "weights_sha256": "the SHA-256 of the result's weights, after {step} steps,",
    "losses": "the loss of step {step}",
    "evaluations": "the number of correct images after {step} steps",
    "best_step": "the choice of the best step, of {step} steps,",
}


@options_from(placement=EVERYWHERE, defaults={"data": "that of training", "processes": "as in training"})
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder. Nothing is written there.")],
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="STEP",
            min=0,
            help="Replay from this step on, or from the last valid checkpoint before it. 0 computes the initial state. "
            "Default: the second newest checkpoint.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of steps to replay. Default: up to the next checkpoint."),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="FILE|RUN", help="The weights that the run was started from, to compute its step 0."),
    ] = None,
    model: Code = None,
    dataset: Code = None,
    inline: Inline = False,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Replay steps of a run, and compare them bit by bit with what the run has recorded.

    By default the steps between the newest two valid checkpoints are computed again. Compared are the digests and
    losses in metrics.jsonl, all tensors of checkpoints, and the SHA-256 in result.json. The number of processes may be
    another one. The folder is only read, so it may be a copy, or a run that is being trained.

    The exit code is 0 if all bits are the same, and 1 if some differ. The first recorded step that differs is then
    named, with tensors, units in the last place (ulp), and what is different about this machine.

    \b
    Examples:
      lockstep verify runs/digits-1
      lockstep verify runs/big --from 400 --steps 50
      lockstep verify downloaded/run --from 0 --processes 4 --json
    """
    from lockstep.commands.specs import verify_spec
    from lockstep.launch.submit import submit
    from lockstep.launch.workers import Output
    from lockstep.launch.world import World
    from lockstep.runs.folder import Run

    world = World.from_environment()
    spec = verify_spec(
        Run.existing(run), placement_of(options), code={"model": model, "dataset": dataset}, init=init, start=start,
        steps=steps,
    )  # fmt: skip
    outcome = submit(spec, Output(), world, inline=inline)
    record = outcome.record
    if outcome.code or record is None:
        raise typer.Exit(outcome.code)
    print(json.dumps(record) if json_output else "\n".join(map(printable, lines_of(record))))
    if not record["same"]:
        raise typer.Exit(CRASH)


def lines_of(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result in words."""
    replayed = f"steps {record['from_step']} to {record['to_step']} replayed"
    compared = ", ".join(_counted(record["compared"]))
    if record["same"]:
        yield f"{replayed}: the same bits"
        yield f"  compared  {compared}"
    else:
        first, equal = record["differences"][0], record["last_equal_step"]
        yield f"{replayed}: not the same bits"
        before = "no recorded state before it is equal" if equal is None else f"the state after {equal} steps is equal"
        yield f"  first     {_WHAT[first['what']].format(step=first['step'])} differs; {before}"
        if first["what"] != "checkpoints":
            yield f"            recorded {first['recorded']}, replayed {first['replayed']}"
        if first["step"] == record["from_step"] and first["what"] == "digests" and first["step"]:
            yield f"            the replay started there: --from {first['step'] - 1} compares this checkpoint"
        yield f"  compared  {compared}; {len(record['differences'])} differ"
        yield from _tensor_lines(record["tensors"])
    yield from _machine_lines(record["machine"], record["same"])


def _counted(compared: Mapping[str, int]) -> Iterator[str]:
    names = {"digests": "digest", "checkpoints": "checkpoint", "losses": "loss", "evaluations": "evaluation"}
    for what, name in names.items():
        if count := compared[what]:
            yield plural(count, name)
    if compared["weights_sha256"]:
        yield "the SHA-256 of the result"
    if compared["best_step"]:
        yield "the choice of the best step"


def _tensor_lines(tensors: Mapping[str, Any] | None) -> Iterator[str]:
    if tensors is None:
        yield "  tensors   no checkpoint of the replayed steps has them"
        return
    yield f"  tensors   {len(tensors['differing'])} of {tensors['count']} differ after {tensors['step']} steps"
    yield from (f"            {line}" for line in difference_lines(tensors["differing"]))


def difference_lines(differing: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each tensor that differs, at most _SHOWN of them."""
    for tensor in differing[:_SHOWN]:
        if tensor["problem"]:
            yield f"{tensor['name']}: {tensor['problem']}"
            continue
        ulp = "" if tensor["max_ulp"] is None else f", {_ulps(tensor['max_ulp'])}"
        size = ", and one of them is not finite" if tensor["max_abs"] is None else f" ({tensor['max_abs']:.3g})"
        yield f"{tensor['name']}: {tensor['differing']:,} of {tensor['elements']:,} elements{ulp}{size}"
    if (more := len(differing) - _SHOWN) > 0:
        yield f"and {more} more: --json lists all"


def _ulps(most: int) -> str:
    return f"by at most {most:,} ulp" if most <= _MAX_ULP else f"by more than {_MAX_ULP:,} ulp"


def _machine_lines(machine: list[dict[str, Any]], same: bool) -> Iterator[str]:
    if not same and not machine:
        yield "  machine   environment.json does not say where the run was computed"
    for session in machine:
        if same and not session["changes"]:
            continue
        words = {True: "the arithmetic probe is equal", False: "the arithmetic probe differs"}
        probe = words.get(session["probe_equal"], "no arithmetic probe is recorded")
        if session["probe_equal"] and session["portable"]:
            probe += ", as on every kind of CPU tried"
        where = f" (session from step {session['from_step']})" if len(machine) > 1 else ""
        yield f"  machine   {probe}{where}: {'; '.join(session['changes']) or _ALIKE}"
