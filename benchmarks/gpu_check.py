"""What Lockstep's tests cannot run without a GPU, in about ten minutes: `make gpu-check`.

Each check prints a line, and all facts go to gpu-check.json, to be attached to a report. A check that fails does not
stop the others; the exit code is then 1. Without a GPU, the checks that need one are skipped, and the others run on the
CPU. The images are random ones, made here; cifar10-record needs the real CIFAR-10 (--data or LOCKSTEP_DATA).
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks import invented
from benchmarks.common import record_of
from lockstep import hardware, numerics
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.loop import Observer
from lockstep.jobs.context import Context
from lockstep.jobs.session import Session
from lockstep.kernels import fused, local_response, portable, reference
from lockstep.models import digits
from lockstep.recipes import RECIPES, get_recipe
from lockstep.runs.statefile import read_tensors

ROOT = Path(__file__).parents[1]
FILE = ROOT / "gpu-check.json"
STEPS = 3
CPU_BATCH = 64
MOST_S = 240.0  # of one program
TOLERANCE = 0.02  # of the norm of a tensor, after one update: CPUs and GPUs add in other orders
KERNEL_TOLERANCE = 1e-4  # of the largest value, in float32
# So that Lockstep finds the datasets of this module, and what the caller's path has.
IMPORTS = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
# In native arithmetic each kind of device draws other masks of dropout, which move some tensors by their whole norm.
WITHOUT_DROPOUT = {
    "digits": ("--model", "benchmarks.gpu_check:digits_without_dropout"),
    "mnist": ("--set", "model_options.dropout=0.0"),
}
FOLDERS = ("folder", "photos", "photos-tuned")  # recipes for folders of images


class SkippedError(Exception):
    """A check cannot be made here; the message says why."""


@dataclass(frozen=True)
class Machine:
    """Where the checks run: a folder for files, the number of GPUs, and the folder of the real data or None."""

    folder: Path
    gpus: int
    data: Path | None

    @property
    def device(self) -> str:
        """Return the kind of device that runs train on."""
        return "cuda" if self.gpus else "cpu"

    def need_gpus(self, count: int = 1) -> None:
        """Raise a SkippedError if there are fewer GPUs."""
        if self.gpus < count:
            raise SkippedError(f"needs {count} GPU{'s' * (count > 1)}, and torch sees {self.gpus}")

    def train(self, name: str, recipe: str, *words: object, device: str | None = None) -> dict[str, Any]:
        """Train the run `name` for STEPS steps, by default on GPUs if there are any. Return its result."""
        record: dict[str, Any] = record_of(self.command(name, recipe, *words, device=device), **IMPORTS)
        return record

    def command(self, name: str, recipe: str, *words: object, device: str | None = None) -> list[str]:
        """Return the command that trains the run `name`."""
        where = ("--runs", self.folder / "runs", "--name", name, "--device", device or self.device)
        command = (sys.executable, "-m", "lockstep", "train", recipe, *self.images(recipe), *where, *words, "--json")
        return [*map(str, command if "--steps" in words else (*command, "--steps", STEPS))]

    def images(self, recipe: str) -> tuple[object, ...]:
        """Return the options that give `recipe` random images."""
        if recipe == "photos-tuned":
            return ("--data", self.folder / "photos", "--init", self.folder / "runs/photos-recipe")
        if recipe in FOLDERS:
            return ("--data", self.folder / "photos")
        dataset = get_recipe(recipe).dataset
        kind = {"mnist": "grey28", "digits": "grey8"}.get(dataset, "colour32")
        return ("--dataset", f"benchmarks.gpu_check:{kind}")

    def run(self, command: str, *words: object) -> Any:
        """Run `lockstep COMMAND ... --json` and return its record."""
        return record_of([sys.executable, "-m", "lockstep", command, *words, "--json"], **IMPORTS)


def _random(side: int, channels: int) -> dict[str, Any]:
    """Return 4,096 training and 200 test images of 10 classes, each class with its own brightness."""
    drawn = np.random.default_rng(0)

    def split(count: int) -> tuple[Any, Any]:
        labels = np.arange(count) % 10
        noise = drawn.integers(0, 120, (count, side, side, channels))
        return (noise + 13 * labels[:, None, None, None]).astype(np.uint8), labels

    return {"train": split(4096), "test": split(200)}


def colour32() -> dict[str, Any]:
    return _random(32, 3)


def grey28() -> dict[str, Any]:
    return _random(28, 1)


def grey8() -> dict[str, Any]:
    return _random(8, 1)


def digits_without_dropout(shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
    """Return the network of `digits` without its dropout."""
    network = digits.Digits(shape, classes)
    network.dropout.p = 0.0
    return network


def make_photos(folder: Path) -> None:
    """Write 80 noisy photos of 2 classes, dark and bright."""
    for label, brightness in (("dark", 60), ("bright", 190)):
        (folder / label).mkdir(parents=True)
        for i in range(40):
            noise = np.random.default_rng(i).integers(0, 60, (64, 64, 3)) + brightness
            Image.fromarray(noise.astype(np.uint8)).save(folder / f"{label}/{i}.png")


def gpus(here: Machine) -> Any:
    """GPUs, their driver and the libraries."""
    here.need_gpus()
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    names = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True)
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {"gpus": names.stdout.splitlines(), "cuda": torch.version.cuda, "nccl": nccl, "cudnn": cudnn}


def doctor(here: Machine) -> Any:
    """No failure is found by lockstep doctor."""
    return here.run("doctor")


def recipes(name: str) -> Callable[[Machine], Any]:
    def check(here: Machine) -> Any:
        changed = [] if name in FOLDERS else ["--no-portable"]
        if not here.gpus:
            changed += ["--batch", str(CPU_BATCH)]
        result = here.train(f"{name}-recipe", name, *changed, "--processes", 1)
        kept = ("weights_sha256", "images_per_s", "peak_memory_bytes", "total_s")
        return {key: result[key] for key in kept}

    check.__doc__ = f"{name}: {STEPS} steps, an evaluation and a checkpoint."
    return check


def against_cpu(name: str) -> Callable[[Machine], Any]:
    def check(here: Machine) -> Any:
        here.need_gpus()
        # One step: each further one amplifies the rounding, on an H100 from 0.005 to 0.05 of a tensor's norm in three.
        words: tuple[object, ...] = ("--no-portable", "--processes", 1, "--precision", "float32", "--steps", 1)
        words += WITHOUT_DROPOUT.get(name, ())
        weights = []
        for device in ("cpu", "cuda"):
            here.train(f"{name}-on-{device}", name, *words, device=device)
            weights.append(read_tensors(here.folder / f"runs/{name}-on-{device}/model.safetensors"))
        far = {key: _distance(weights[1][key], value) for key, value in weights[0].items()}
        worst = max(far, key=lambda key: far[key])
        assert far[worst] <= TOLERANCE, f"{worst} differs by {far[worst]:.2g} of its norm, {TOLERANCE} is allowed"
        return {"farthest": worst, "difference": far[worst]}

    without = " without dropout" if name in WITHOUT_DROPOUT else ""
    check.__doc__ = f"{name}{without}: GPU and CPU agree after one step."
    return check


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    norm = expected.double().norm()
    return float((found.double() - expected.double()).norm() / norm) if norm else float(found.double().norm())


def kernels(here: Machine) -> Any:
    """Kernels and their gradients are those of plain torch operators in float64."""
    device = torch.device(here.device)
    numerics.configure(1, exact=True)  # as in training: torch's own flags let a GPU round to TF32
    torch.manual_seed(0)
    x, weight, bias = torch.randn(8, 16, 24, 24), torch.randn(32, 16, 5, 5) / 20, torch.randn(32)
    band = (torch.arange(16)[:, None] - torch.arange(16)).abs().le(4).float()[:, :, None, None] * 1e-3
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any], tuple[Any, ...]]] = {
        "conv_relu": (fused.conv_relu, reference.conv_relu, [x, weight, bias], ((2, 2, 2, 2), (3, 2))),
        "local_response": (local_response.local_response, reference.local_response, [x, band], ()),
    }
    found = {}
    for name, (kernel, plain, tensors, more) in cases.items():
        results = []
        for function, dtype, place in ((kernel, torch.float32, device), (plain, torch.float64, torch.device("cpu"))):
            own = [tensor.to(place, dtype).requires_grad_() for tensor in tensors]
            value = function(*own, *more)
            results.append(
                [value.detach(), *torch.autograd.grad(value.square().sum(), own[: 3 if name == "conv_relu" else 1])]
            )
        found[name] = max(
            float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True)
        )
        assert found[name] <= KERNEL_TOLERANCE, f"{name} differs by {found[name]:.2g}"
    return found


def one_hash(here: Machine) -> Any:
    """One hash on 1 to N processes, N the number of GPUs (4 on one GPU, 2 on a CPU)."""
    most = here.gpus or 2
    hashes = {}
    for count in range(1, (4 if here.gpus == 1 else min(most, 4)) + 1):
        words = ("--no-portable", "--towers", 4, "--processes", count)
        shared = f"cuda:{','.join('0' * count)}" if here.gpus == 1 else None  # All processes are on the one GPU.
        hashes[count] = here.train(f"hash-{count}", "digits", *words, device=shared)
    found = {count: result["weights_sha256"] for count, result in hashes.items()}
    assert len({*found.values()}) == 1, found
    return found


def restart(here: Machine) -> Any:
    """A run that is killed and resumed has the hash of one that was not."""
    words = ("--no-portable", "--processes", 1, "--steps", 400, "--save-every", 20)
    whole = here.train("whole", "digits", *words)
    program = subprocess.Popen(
        here.command("killed", "digits", *words), env={**os.environ, **IMPORTS}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    metrics, deadline = here.folder / "runs/killed/metrics.jsonl", time.monotonic() + MOST_S
    while not (metrics.exists() and '"step": 50,' in metrics.read_text()) and program.poll() is None:
        assert time.monotonic() < deadline, "it does not reach step 50"
        time.sleep(0.02)
    killed = program.poll() is None
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    time.sleep(1)  # The worker notices that its launcher is gone.
    resumed = here.train("killed", "digits", *words, "--resume")
    assert resumed["weights_sha256"] == whole["weights_sha256"], (resumed["weights_sha256"], whole["weights_sha256"])
    return {"killed_in_time": killed, "weights_sha256": whole["weights_sha256"]}


def speed(here: Machine) -> Any:
    """Images/s and the parts of a step, in training on random images."""
    result = here.train("speed", "cifar10-tutorial", "--steps", 100 if here.gpus else 10)
    return {name: result[name] for name in ("images_per_s", "train_s", "peak_memory_bytes")}


def portable_on(name: str) -> Callable[[Machine], Any]:
    def check(here: Machine) -> Any:
        here.need_gpus()
        hashes = {}
        for device in ("cpu", "cuda"):
            result = here.train(f"portable-{name}-on-{device}", name, "--portable", "--processes", 1, device=device)
            hashes[device] = result["weights_sha256"]
        assert len({*hashes.values()}) == 1, f"{hashes}. Operations: {differences(name, torch.device('cuda', 0))}"
        return hashes

    check.__doc__ = f"{name} in portable arithmetic: GPU and CPU have one hash after {STEPS} steps."
    return check


class Compared(portable.Portable):  # type: ignore[no-untyped-call]
    """Computes each operation a second time, on the CPU, from the same operands, and compares every bit."""

    found: ClassVar[Counter[str]] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operation, and note it if a bit differs. The result of the device is used further."""
        here = [_on_cpu(one) for one in (args, kwargs or {})]
        state = torch.get_rng_state()
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        after = torch.get_rng_state()
        if not any(name in str(operation) for name in _WITHOUT_VALUES):
            torch.set_rng_state(state)  # Portable random numbers depend on nothing else.
            again = super().__torch_dispatch__(operation, types, *here)
            torch.set_rng_state(after)
            written = () if "out" in (kwargs or {}) else (args, here[0])  # An operand may be `out` too.
            pairs = zip(tree_leaves((result, *written[:1])), tree_leaves((again, *written[1:])), strict=True)
            if not all(_same_bits(one, other) for one, other in pairs):
                shapes = [tuple(x.shape) for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
                self.found[f"{operation} of {shapes}"] += 1
        return result


_WITHOUT_VALUES = ("empty", "pin", "as_strided")  # or a view by places in the whole memory of its operand


def _on_cpu(values: Any) -> Any:
    """Return copies on the CPU of all tensors in `values`, and the CPU for its devices."""

    def moved(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return one.detach().to("cpu", copy=True)
        return torch.device("cpu") if isinstance(one, torch.device) else one

    with portable.native():
        return tree_map(moved, values)


def _same_bits(found: Any, expected: Any) -> bool:
    """Return whether two results are equal; zeros of either sign are."""
    if not isinstance(found, torch.Tensor):
        return type(found) is not float or found == expected or found != found
    with portable.native():
        return torch.allclose(found.detach().cpu(), expected.detach(), rtol=0.0, atol=0.0, equal_nan=True)


def differences(name: str, device: torch.device, batch: int | None = None) -> dict[str, int]:
    """Return the operations of one step of a recipe, of its own batch, that leave other bits on `device` than here."""
    changes = {"steps": STEPS, "arithmetic": "portable", "precision": "float32"} | ({"batch": batch} if batch else {})
    recipe = make(get_recipe(name).model_dump(mode="json"), changes)
    splits = invented.load(recipe.dataset, recipe.batch, recipe.image_px)
    session = Session(recipe, Placement(device=device.type), Context(device=device), splits)
    Compared.found.clear()
    with mock.patch.object(portable, "Portable", Compared):
        next(session.updates(Observer()))
    return dict(Compared.found.most_common(9))


NATIVE = ("digits", "cifar10-tutorial", "mnist", "cifar10")
CHECKS: dict[str, Callable[[Machine], Any]] = {
    "GPUs": gpus,
    "doctor": doctor,
    "kernels": kernels,
    **{f"recipe {name}": recipes(name) for name in RECIPES},
    **{f"CPU and GPU {name}": against_cpu(name) for name in NATIVE},
    "one hash": one_hash,
    "restart": restart,
    "speed": speed,
    **{f"portable {name}": portable_on(name) for name in (*NATIVE, "folder")},
}


def checked(check: Callable[[Machine], Any], here: Machine) -> dict[str, Any]:
    """Make a check. Return its status, its seconds, and its facts or what went wrong."""
    began = time.monotonic()
    try:
        result: dict[str, Any] = {"status": "PASS", "facts": check(here)}
    except SkippedError as reason:
        result = {"status": "SKIP", "facts": str(reason)}
    except (SystemExit, AssertionError, Exception) as problem:  # record_of ends the program with the command's message
        result = {"status": "FAIL", "facts": f"{type(problem).__name__}: {problem}"}
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("LOCKSTEP_DATA"), help="folder of the real CIFAR-10"
    )
    parser.add_argument("--only", help="the checks whose name contains this")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-gpu-check-") as folder:
        here = Machine(Path(folder), hardware.gpus(), Path(args.data) if args.data else None)
        make_photos(here.folder / "photos")
        facts = {
            "cpu": hardware.processor(),
            "cores": hardware.cores(),
            "gpus": here.gpus,
            "system": platform.platform(),
        }
        facts |= {name: version(name) for name in ("lockstep", "torch", "numpy")}
        for name, check in CHECKS.items():
            if args.only is None or args.only in name:
                results[name] = checked(check, here)
                told = results[name]["facts"] if results[name]["status"] != "PASS" else (check.__doc__ or "")
                first = str(told).strip().splitlines()[0] if str(told).strip() else ""
                print(f"{results[name]['status']}  {name:28} {results[name]['seconds']:6.1f} s  {first}", flush=True)
                FILE.write_text(json.dumps(facts | {"checks": results}, indent=1) + "\n")
    count = {status: sum(one["status"] == status for one in results.values()) for status in ("PASS", "SKIP", "FAIL")}
    print(f"{count['PASS']} passed, {count['SKIP']} skipped, {count['FAIL']} failed: {FILE.absolute()}")
    sys.exit(bool(count["FAIL"]))


if __name__ == "__main__":
    main()
