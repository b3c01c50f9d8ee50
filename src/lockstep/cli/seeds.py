"""`lockstep train --seeds A:B`: the runs of a series, one after the other, and what they have in common."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lockstep.config.placement import Placement
from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.launch.world import World

_FIGURES = ("accuracy", "train_s", "total_s", "images_per_s")


def seeds_of(text: str) -> range:
    """Return the seeds that `A:B` names: A to B - 1. Raises: LockstepError."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise LockstepError(f"--seeds {text}: give FIRST:END with END above FIRST, as in 0:10 for the seeds 0 to 9")
    return range(int(first), int(end))


def train_seeds(
    seeds: range, what: str | None, changes: dict[str, Any], placement: Placement, world: "World", *, folder: Path,
    resume: bool, quiet: bool, json_output: bool, inline: bool, **others: Any,
) -> None:  # fmt: skip
    """Train a run for each seed in a folder of its own in `folder`, and write report.html there.

    A run that is complete is left unchanged, and one that is begun is continued. `others` are as for `train_spec`.
    Raises: LockstepError, and typer.Exit with the exit code of a run that was stopped.
    """
    from lockstep.api.report import Report
    from lockstep.api.specs import RunFolder, train_spec
    from lockstep.launch.submit import submit
    from lockstep.launch.workers import Output
    from lockstep.pages.runs import page
    from lockstep.runs.recorded import Recorded

    if world.joined:
        raise LockstepError("--seeds starts runs one after the other: start it without torchrun, srun or mpirun")
    if not resume and folder.exists():
        raise LockstepError(f"{folder} exists already: continue it with --resume, or give another --name")

    def say(text: str) -> None:
        if not (quiet or json_output):
            print(text, flush=True)

    say(f"{len(seeds)} runs in {folder}")
    results = []
    for seed in seeds:
        spec = train_spec(
            what, {**changes, "seed": seed}, placement, name=f"seed-{seed}", runs=folder, resume=True, world=world,
            own_program=True, started=time.time(), **others,
        )  # fmt: skip
        if isinstance(spec, RunFolder):
            result = spec.result
        else:
            outcome = submit(spec, Output(quiet=True), world, inline=inline)
            if outcome.code or outcome.record is None:
                typer.echo(f"seed {seed} was not completed: continue with --name {folder.name} --resume", err=True)
                raise typer.Exit(outcome.code)
            result = outcome.record
        assert result is not None
        known = result["accuracy"]
        result = {**result, "seed": seed, "accuracy": known["raw"] if known["ema"] is None else known["ema"]}
        results.append(result)
        say(f"seed {seed}: {result['accuracy']:.2%}, {result['train_s']:.1f} s of training, {result['total_s']:.1f} s")
    report = folder / "report.html"
    Report(page([Recorded(folder / f"seed-{seed}") for seed in seeds])).save(report)
    record = _record(results)
    if json_output:
        print(json.dumps({"series": str(folder), "report": str(report), **record}))
        return
    one = record["figures"]["accuracy"]
    spread = f", standard deviation {100 * one['deviation']:.2f} points" if len(seeds) > 1 else ""
    say(f"accuracy {one['mean']:.2%} in the mean{spread}, {one['min']:.2%} to {one['max']:.2%} ({one['n']} seeds)")
    say(f"report   {report}")


def _record(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the runs have in common, their spread, and each of them."""
    figures = {}
    for name in _FIGURES:
        values = [result[name] for result in results]
        figures[name] = {
            "n": len(values), "median": statistics.median(values), "min": min(values), "max": max(values),
            "mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        }  # fmt: skip
    common = {name: results[0][name] for name in ("recipe", "processes", "device", "versions")}
    kept = ("seed", *_FIGURES, "weights_sha256")
    return {**common, "figures": figures, "runs": [{name: result[name] for name in kept} for result in results]}
