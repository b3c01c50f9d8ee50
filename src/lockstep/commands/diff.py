"""lockstep diff."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.commands.options import Json, present

_VERDICTS = {True: "the same bits, as far as both have recorded", False: "not the same bits", None: "nothing in common"}


def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another run's folder.")],
    json_output: Json = False,
) -> None:
    """Say from which step on two runs differ.

    Compares their folders: the digests of the state in metrics.jsonl and the SHA-256 of the results. Lists how the
    recipes and the environments of the last sessions differ. Nothing is computed. The exit code is 0 whether or not
    they differ; --json has it as "same".

    \b
    Examples:
      lockstep diff runs/digits-1 runs/digits-2
      lockstep diff runs/mine downloaded/run --json
    """
    from lockstep.runs.listing import difference

    record = difference(first, second)
    step, equal = record["first_different_step"], record["last_equal_step"]
    after = "" if equal is None else f"equal after {equal} steps"
    digests = after or "none of the same step in both" if step is None else f"differ after {step} steps; {after}"
    lines = [
        f"{' -> '.join(record['runs'])}: {_VERDICTS[record['same']]}",
        f"  digests      {digests.removesuffix('; ')}",
    ]
    lines += [f"  {name:<11}  {text}" for name in ("recipe", "environment") for text in record[name] or ["the same"]]
    present(lines, record if json_output else None)
