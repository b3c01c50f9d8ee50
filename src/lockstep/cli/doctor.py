"""lockstep doctor."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import Json
from lockstep.errors import ENVIRONMENT, LockstepError, printable


def doctor(
    folder: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Folder of the runs, whose disk is measured.")
    ] = Path("runs"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of datasets. Default: LOCKSTEP_DATA, then the user's cache.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check this machine in a few seconds: PASS, WARN or FAIL, with a remedy.

    Checked are torch and devices, threads, CPU quota, shared memory, network, disk, clock, downloaded datasets (up to 1
    GB) and a sample of the caches of images. Two processes add vectors, and must get the bits of one. The arithmetic
    probe is the SHA-256 of one small update of a fixed network: machines with an equal probe compute equal bits.

    The exit code is 4 if a check fails, else 0. With --json, "machine" has what decides the bits of this machine, and
    its whole probe.

    \b
    Examples:
      lockstep doctor
      lockstep doctor --runs /scratch/runs --json
    """
    from lockstep import numerics
    from lockstep.launch.world import World

    if World.from_environment().joined:
        raise LockstepError("lockstep doctor starts its own processes: start it without torchrun, srun or mpirun")
    variables = dict(os.environ)
    numerics.prepare(1)  # The next line imports torch.
    from lockstep.doctor.examine import Examination

    examination = Examination(variables, folder, data.absolute() if data else None)
    findings = []
    for finding in examination.findings():
        findings.append(finding)
        if not json_output:
            print(printable(f"{finding.status}  {finding.check:<13}  {finding.text}"), flush=True)
            if finding.remedy:
                print(printable(f"      {'':13}  -> {finding.remedy}"), flush=True)
    counts = {status: sum(one.status == status for one in findings) for status in ("PASS", "WARN", "FAIL")}
    if json_output:
        print(json.dumps({"checks": [asdict(one) for one in findings], "counts": counts, "machine": examination.entry}))
    else:
        print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["FAIL"]:
        raise typer.Exit(ENVIRONMENT)
