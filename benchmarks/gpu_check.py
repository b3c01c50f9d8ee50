"""What Lockstep's tests cannot run without a GPU, in about ten minutes: `make gpu-check`.

Each check prints a line, and all facts go to gpu-check.json, to be attached to a report. A check
that fails does not stop the others; the exit code is then 1. Without a GPU, the checks that need
one are skipped, and the others run on the CPU. The images are random ones, made here.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.common import LOCKSTEP, record_of
from lockstep import __version__, hardware, numerics
from lockstep.kernels import fused, local_response, reference
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
# In native arithmetic each kind of device draws other masks of dropout, which move some tensors by
# their whole norm.
WITHOUT_DROPOUT = {
    "digits": ("--model", "benchmarks.gpu_check:digits_without_dropout"),
    "mnist": ("--set", "model_options.dropout=0.0"),
}
FOLDERS = ("folder", "photos", "photos-tuned")  # recipes for folders of images


class SkippedError(Exception):
    """A check cannot be made here; the message says why."""


@dataclass(frozen=True)
class Machine:
    """Where the checks run: a folder for files, and the number of GPUs."""

    folder: Path
    gpus: int

    @property
    def device(self) -> str:
        """Return the kind of device that runs train on."""
        return "cuda" if self.gpus else "cpu"

    def need_gpus(self, count: int = 1) -> None:
        """Raise a SkippedError if there are fewer GPUs."""
        if self.gpus < count:
            raise SkippedError(f"needs {count} GPU{'s' * (count > 1)}, and torch sees {self.gpus}")

    def train(
        self, name: str, recipe: str, *words: object, device: str | None = None
    ) -> dict[str, Any]:
        """Train the run `name` for STEPS steps, by default on GPUs if there are any. Return its
        result.
        """
        record: dict[str, Any] = record_of(
            self.command(name, recipe, *words, device=device), **IMPORTS
        )
        return record

    def command(
        self, name: str, recipe: str, *words: object, device: str | None = None
    ) -> list[str]:
        """Return the command that trains the run `name`."""
        where = ("--runs", self.folder / "runs", "--name", name, "--device", device or self.device)
        command = (
            *LOCKSTEP,
            "train",
            recipe,
            *self.images(recipe),
            *where,
            *words,
            "--json",
        )
        return [*map(str, command if "--steps" in words else (*command, "--steps", STEPS))]

    def images(self, recipe: str) -> tuple[object, ...]:
        """Return the options that give `recipe` random images."""
        if recipe == "photos-tuned":
            return ("--data", self.folder / "photos", "--init", self.folder / "runs/photos-start")
        if recipe in FOLDERS:
            return ("--data", self.folder / "photos")
        dataset = get_recipe(recipe).dataset
        kind = {"mnist": "grey28", "digits": "grey8"}.get(dataset, "colour32")
        return ("--dataset", f"benchmarks.gpu_check:{kind}")

    def differences(self, recipe: str) -> Any:
        """Return the operations of a step that leave other bits on the GPU than on the CPU, or why
        they are unknown.
        """
        words = ("-m", "benchmarks.gpu.bits", recipe, "--steps", "1")
        try:
            return record_of([sys.executable, *words], **IMPORTS)["differ"]
        except SystemExit as problem:
            return str(problem).strip().splitlines()[-1:]

    def run(self, command: str, *words: object) -> Any:
        """Run `lockstep COMMAND ... --json` and return its record."""
        return record_of([*LOCKSTEP, command, *words, "--json"], **IMPORTS)


def _random(side: int, channels: int) -> dict[str, Any]:
    """Return 4,096 training and 200 test images of 10 classes, each class with its own
    brightness.
    """
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
    names = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {
        "gpus": names.stdout.splitlines(),
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "cudnn": cudnn,
    }


def doctor(here: Machine) -> Any:
    """No failure is found by lockstep doctor."""
    return here.run("doctor")


def recipes(name: str) -> Callable[[Machine], Any]:
    def check(here: Machine) -> Any:
        changed = [] if name in FOLDERS else ["--no-portable"]
        if not here.gpus:
            changed += ["--batch", str(CPU_BATCH)]
        if name == "photos-tuned":
            here.train("photos-start", "photos", "--processes", 1)
        result = here.train(f"{name}-recipe", name, *changed, "--processes", 1)
        kept = ("weights_sha256", "images_per_s", "peak_memory_bytes", "total_s")
        return {key: result[key] for key in kept}

    check.__doc__ = f"{name}: {STEPS} steps, an evaluation and a checkpoint."
    return check


def against_cpu(name: str) -> Callable[[Machine], Any]:
    def check(here: Machine) -> Any:
        here.need_gpus()
        # One step: each further one amplifies the rounding, on an H100 from 0.005 to 0.05 of a
        # tensor's norm in three.
        words: tuple[object, ...] = (
            "--no-portable",
            "--processes",
            1,
            "--precision",
            "float32",
            "--steps",
            1,
        )
        words += WITHOUT_DROPOUT.get(name, ())
        weights = []
        for device in ("cpu", "cuda"):
            here.train(f"{name}-on-{device}", name, *words, device=device)
            weights.append(read_tensors(here.folder / f"runs/{name}-on-{device}/model.safetensors"))
        far = {key: _distance(weights[1][key], value) for key, value in weights[0].items()}
        worst = max(far, key=lambda key: far[key])
        assert far[worst] <= TOLERANCE, (
            f"{worst} differs by {far[worst]:.2g} of its norm, {TOLERANCE} is allowed"
        )
        return {"farthest": worst, "difference": far[worst]}

    without = " without dropout" if name in WITHOUT_DROPOUT else ""
    check.__doc__ = f"{name}{without}: GPU and CPU agree after one step."
    return check


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    norm = expected.double().norm()
    return (
        float((found.double() - expected.double()).norm() / norm)
        if norm
        else float(found.double().norm())
    )


def kernels(here: Machine) -> Any:
    """Kernels and their gradients are those of plain torch operators in float64."""
    device = torch.device(here.device)
    numerics.configure(1, exact=True)  # as in training: torch's own flags let a GPU round to TF32
    torch.manual_seed(0)
    x, weight, bias = torch.randn(8, 16, 24, 24), torch.randn(32, 16, 5, 5) / 20, torch.randn(32)
    band = (torch.arange(16)[:, None] - torch.arange(16)).abs().le(4).float()[
        :, :, None, None
    ] * 1e-3
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any], tuple[Any, ...]]] = {
        "conv_relu": (
            fused.conv_relu,
            reference.conv_relu,
            [x, weight, bias],
            ((2, 2, 2, 2), (3, 2)),
        ),
        "local_response": (local_response.local_response, reference.local_response, [x, band], ()),
    }
    found = {}
    for name, (kernel, plain, tensors, more) in cases.items():
        results = []
        for function, dtype, place in (
            (kernel, torch.float32, device),
            (plain, torch.float64, torch.device("cpu")),
        ):
            own = [tensor.to(place, dtype).requires_grad_() for tensor in tensors]
            value = function(*own, *more)
            results.append(
                [
                    value.detach(),
                    *torch.autograd.grad(
                        value.square().sum(), own[: 3 if name == "conv_relu" else 1]
                    ),
                ]
            )
        found[name] = max(
            float((a.cpu().double() - b).abs().max() / b.abs().max())
            for a, b in zip(*results, strict=True)
        )
        assert found[name] <= KERNEL_TOLERANCE, f"{name} differs by {found[name]:.2g}"
    return found


def one_hash(here: Machine) -> Any:
    """One hash on 1 to N processes, N the number of GPUs (4 on one GPU, 2 on a CPU)."""
    most = here.gpus or 2
    hashes = {}
    for count in range(1, (4 if here.gpus == 1 else min(most, 4)) + 1):
        words = ("--no-portable", "--towers", 4, "--processes", count)
        # All processes are on the one GPU.
        shared = f"cuda:{','.join('0' * count)}" if here.gpus == 1 else None
        hashes[count] = here.train(f"hash-{count}", "digits", *words, device=shared)
    found = {count: result["weights_sha256"] for count, result in hashes.items()}
    assert len({*found.values()}) == 1, found
    return found


def graphs(here: Machine) -> Any:
    """CUDA graphs leave the weights that kernels leave, launched one by one."""
    here.need_gpus()
    found = {}
    for name in ("digits", "cifar10"):
        # The first steps are captured and compared.
        words = ("--no-portable", "--processes", 1, "--steps", 10)
        both = (
            here.train(f"{name}-graphs", name, *words),
            here.train(f"{name}-kernels", name, *words, "--no-graphs"),
        )
        found[name] = [result["weights_sha256"] for result in both]
        assert found[name][0] == found[name][1], found
    return found


def restart(here: Machine) -> Any:
    """A run that is killed and resumed has the hash of one that was not."""
    words = ("--no-portable", "--processes", 1, "--steps", 400, "--save-every", 20)
    whole = here.train("whole", "digits", *words)
    program = subprocess.Popen(
        here.command("killed", "digits", *words),
        env={**os.environ, **IMPORTS},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics, deadline = here.folder / "runs/killed/metrics.jsonl", time.monotonic() + MOST_S
    while (
        not (metrics.exists() and '"step": 50,' in metrics.read_text()) and program.poll() is None
    ):
        assert time.monotonic() < deadline, "it does not reach step 50"
        time.sleep(0.02)
    killed = program.poll() is None
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    time.sleep(1)  # The worker notices that its launcher is gone.
    resumed = here.train("killed", "digits", *words, "--resume")
    assert resumed["weights_sha256"] == whole["weights_sha256"], (
        resumed["weights_sha256"],
        whole["weights_sha256"],
    )
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
            one = ("--processes", 1) if device == "cuda" else ()
            result = here.train(
                f"portable-{name}-on-{device}", name, "--portable", *one, device=device
            )
            hashes[device] = result["weights_sha256"]
        assert len({*hashes.values()}) == 1, f"{hashes}. Operations: {here.differences(name)}"
        return hashes

    check.__doc__ = f"{name} in portable arithmetic: GPU and CPU have one hash after {STEPS} steps."
    return check


NATIVE = ("digits", "cifar10-tutorial", "mnist", "cifar10")
CHECKS: dict[str, Callable[[Machine], Any]] = {
    "GPUs": gpus,
    "doctor": doctor,
    "kernels": kernels,
    **{f"recipe {name}": recipes(name) for name in RECIPES},
    **{f"CPU and GPU {name}": against_cpu(name) for name in NATIVE},
    "one hash": one_hash,
    "graphs": graphs,
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
    except (
        SystemExit,
        AssertionError,
        Exception,
    ) as problem:  # record_of ends the program with the command's message
        result = {"status": "FAIL", "facts": f"{type(problem).__name__}: {problem}"}
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the checks whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="checks at a time")
    parser.add_argument("--out", type=Path, default=FILE, help="the file of all facts")
    args = parser.parse_args()
    numerics.prepare(1)  # cuBLAS refuses deterministic products without a variable.
    names = [name for name in CHECKS if args.only is None or args.only in name]
    results: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-gpu-check-") as folder,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        here = Machine(Path(folder), hardware.gpus())
        make_photos(here.folder / "photos")
        facts = {
            "cpu": hardware.processor(),
            "cores": hardware.cores(),
            "gpus": here.gpus,
            "system": platform.platform(),
        }
        facts |= {"lockstep": __version__, **{name: version(name) for name in ("torch", "numpy")}}
        writing = threading.Lock()

        def note(name: str) -> None:
            result = checked(CHECKS[name], here)
            told = result["facts"] if result["status"] != "PASS" else (CHECKS[name].__doc__ or "")
            first = str(told).strip().splitlines()[0] if str(told).strip() else ""
            with writing:
                results[name] = result
                print(
                    f"{result['status']}  {name:28} {result['seconds']:6.1f} s  {first}", flush=True
                )
                args.out.write_text(json.dumps(facts | {"checks": results}, indent=1) + "\n")

        for _ in pool.map(note, names):  # Ctrl-C leaves out those that have not begun.
            pass
    count = {
        status: sum(one["status"] == status for one in results.values())
        for status in ("PASS", "SKIP", "FAIL")
    }
    print(
        f"{count['PASS']} passed, {count['SKIP']} skipped, {count['FAIL']} failed: "
        f"{args.out.absolute()}"
    )
    sys.exit(bool(count["FAIL"]))


if __name__ == "__main__":
    main()
