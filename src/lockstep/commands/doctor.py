"""`lockstep doctor`."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep import hardware, numerics
from lockstep.commands.options import Json, present
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.data import catalog
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.jobs.context import Output
from lockstep.jobs.specs import TrainSpec
from lockstep.launch.submit import require_alone, submit
from lockstep.recipes import get_recipe
from lockstep.words import plural

_STEPS = 20
# Of the weights of `digits` after these steps, in portable arithmetic. It changes only with tests/golden.
_SHA256 = "4ba18c80f8dd8cf2d1fa9a999af67d3f4643865193cce5f603a2c4dee71aee53"


def doctor(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of datasets. Default: LOCKSTEP_DATA, then the user's cache.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check that this machine computes the right bits, and how fast.

    `digits` is trained for some steps in portable arithmetic, on one and on two processes. Both must end with the
    weights that every machine computes. On a GPU, native arithmetic trains it once more; its weights are only stated.
    Before that, the command prints what decides native bits (processor, libraries, variables of the shell), the GPUs or
    why torch sees none, and the folders of the datasets.

    The exit code is 4 if the bits are wrong, or if the processes cannot connect or compute.

    \b
    Examples:
      lockstep doctor
      lockstep doctor --json
    """
    require_alone("doctor")
    numerics.prepare(1)  # The next line imports torch.
    record = _machine(data.absolute() if data else None)
    if not json_output:
        present(_lines(record))
    record["runs"] = []
    for arithmetic, processes in [("portable", 1), ("portable", 2), *([("native", 1)] if record["gpus"] else [])]:
        run = _train(arithmetic, processes)
        record["runs"].append(run)
        if not json_output:
            present([_line(run)])
    wrong = [run for run in record["runs"] if not run["right"]]
    if json_output:
        present([], record | {"right": not wrong})
    if wrong:
        raise LockstepError(
            f"{len(wrong)} of {len(record['runs'])} runs ended with other bits than on other machines. If only two "
            f"processes are wrong, test the memory of this machine; else train with --no-portable, and report this CPU "
            f"and its version of torch",
            ENVIRONMENT,
        )


def _machine(data: Path | None) -> dict[str, Any]:
    """Return what decides the bits of this machine, its GPUs, and the folders of its datasets."""
    import torch

    from lockstep.runs.provenance import fingerprint  # imports torch

    gpus = [torch.cuda.get_device_name(number) for number in range(hardware.gpus())]
    machine = fingerprint(torch.device("cuda", 0) if gpus else torch.device("cpu"))
    ours = numerics.environment(1)
    machine["environment"] = {name: value for name, value in machine["environment"].items() if name not in ours}
    return {
        "machine": machine,
        "processor": hardware.processor(),
        "cores": hardware.cores(),
        "gpus": gpus,
        "gpu_problem": hardware.gpu_problem(),
        "data": {
            name: str(files[0].parent) for name, one in catalog.SOURCES.items() if (files := catalog.present(one, data))
        },
    }


def _train(arithmetic: str, processes: int) -> dict[str, Any]:
    """Train `digits` for some steps. Return the SHA-256 of its weights, whether it is right, and the speed.

    Raises: LockstepError if it fails, typer.Exit if it is stopped.
    """
    recipe = make(get_recipe("digits").model_dump(mode="json"), {"steps": _STEPS, "arithmetic": arithmetic})
    device = "cpu" if arithmetic == "portable" else "cuda"
    placement = Placement(processes=processes, device=device, max_restarts=0)
    with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as folder:
        spec = TrainSpec(recipe=recipe, placement=placement, path=Path(folder) / "digits")
        outcome = submit(spec, Output(quiet=True))
    if outcome.code or outcome.record is None:
        raise typer.Exit(outcome.code)
    return {
        "arithmetic": arithmetic,
        "processes": processes,
        "right": arithmetic == "native" or outcome.record["weights_sha256"] == _SHA256,
        **{name: outcome.record[name] for name in ("device", "weights_sha256", "images_per_s", "total_s")},
    }


def _lines(record: dict[str, Any]) -> list[str]:
    """Return the lines about the machine."""
    machine, versions = record["machine"], record["machine"]["versions"]
    none = f"none: a driver is here, but {record['gpu_problem']}" if record["gpu_problem"] else "none"
    return [
        f"cpu        {record['processor']}, {plural(record['cores'], 'core')}, {machine['cpu_capability']}",
        f"gpu        {', '.join(record['gpus']) or none}",
        f"libraries  {', '.join(f'{name} {version}' for name, version in versions.items())}",
        *(f"variable   {name}={value}: may change bits or speed" for name, value in machine["environment"].items()),
        *(f"data       {name}: {folder}" for name, folder in record["data"].items()),
    ]


def _line(run: dict[str, Any]) -> str:
    """Return the line of a run."""
    judged = {"portable": "right" if run["right"] else "WRONG", "native": "not known"}[run["arithmetic"]]
    where = f"{run['arithmetic']} on {plural(run['processes'], 'process')} ({run['device']})"
    return f"bits       {where}: {judged}, sha256 {run['weights_sha256'][:12]}; {run['images_per_s']:,.0f} images/s"
