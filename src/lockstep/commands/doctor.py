"""`lockstep doctor`."""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from lockstep import hardware, numerics
from lockstep.commands.shell import record_of
from lockstep.config.placement import Placement
from lockstep.errors import ENVIRONMENT, LockstepError, option
from lockstep.files import Record
from lockstep.jobs.specs import TrainSpec
from lockstep.launch.submit import require_alone
from lockstep.recipes import get_recipe
from lockstep.text import plural

_STEPS = 20
# Of the weights of `digits` after these steps, in portable arithmetic. It changes only with
# tests/golden.
_SHA256 = "4ba18c80f8dd8cf2d1fa9a999af67d3f4643865193cce5f603a2c4dee71aee53"


def doctor() -> Iterator[str | Record]:
    """Check that this machine computes the right bits.

    The command trains 20 steps of `digits` on one and on two processes, and compares both results
    with the known weights of these steps. It also prints the processor, the arithmetic that
    is available, and the GPUs, or why torch sees none. The exit code is 4 if the bits are wrong, or
    if the processes cannot connect or compute.

    Examples:
      lockstep doctor
      lockstep doctor --json
    """
    require_alone("doctor")
    numerics.prepare(1)  # The next line imports torch.
    import torch

    from lockstep.kernels.cpu_table import for_this_cpu
    from lockstep.kernels.portable.backends import uses_by_backend

    gpus = [torch.cuda.get_device_name(number) for number in range(hardware.gpus())]
    problem, processor, cores = hardware.gpu_problem(), hardware.processor(), hardware.cores()
    yield f"cpu   {processor}, {plural(cores, 'core')}, torch {torch.__version__}"
    yield (
        "native bits depend on this kind of CPU and on the version of torch; log.txt of a run "
        "names both"
    )
    backends = uses_by_backend()
    used = [name for name, uses in backends.items() if uses]
    yield (
        f"portable bits are those of every kind of CPU tried; computed here in {' and '.join(used)}"
    )
    none = f"none: a driver is here, but {problem}" if problem else "none"
    yield f"gpu   {', '.join(gpus) or none}"
    if gpus and find_spec("pynvml") is None:
        yield "use   to see how busy GPUs are: pip install nvidia-ml-py"
    recipe, weights = get_recipe("digits").replace(steps=_STEPS, epochs=None), dict[int, str]()
    for processes in (1, 2):
        placement = Placement(processes=processes, device="cpu", max_restarts=0)
        with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as folder:
            spec = TrainSpec(recipe=recipe, placement=placement, path=Path(folder) / "digits")
            weights[processes] = record_of(spec, quiet=True)["weights_sha256"]
        verdict = "right" if weights[processes] == _SHA256 else "WRONG"
        yield (
            f"bits  on {plural(processes, 'process')}: {verdict}, sha256 {weights[processes][:12]}"
        )
    right = {*weights.values()} == {_SHA256}
    yield {
        "processor": processor,
        "cores": cores,
        "torch": torch.__version__,
        "gpus": gpus,
        "gpu_problem": problem,
        "native": str(for_this_cpu()),
        "units": backends,
        "weights_sha256": weights,
        "right": right,
    }
    if not right:
        raise LockstepError(
            "this machine computes other bits than others. If only two processes are wrong, test "
            "its memory; else "
            f"train with {option('portable', False)}, and report this CPU and its version of torch",
            ENVIRONMENT,
        )
