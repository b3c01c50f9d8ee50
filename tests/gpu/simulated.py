"""Trains every recipe to its end on the simulated GPU of fake_cuda.cpp: `python -m
tests.gpu.simulated LIBRARY`.

The values are real, and the host may not touch the GPU's memory. It prints one line of JSON for
each case: its name, whether the last checkpoint is that of the CPU, what made the host wait for the
GPU in a step, and the error, if there is one.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

if __name__ == "__main__":  # before torch is imported: it asks once whether there is a driver
    libraries = Path(str(importlib.util.find_spec("torch").origin)).parent / "lib"
    ctypes.CDLL(str(libraries / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    GPU = ctypes.CDLL(sys.argv[1])

import torch
import torch.distributed as distributed
from benchmarks import invented
from benchmarks.gpu.stand_ins import Graph, graphs_of_a_gpu, operators_of_a_gpu
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep import numerics
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.config.recipe import Recipe
from lockstep.core import loop
from lockstep.core.build import build_model
from lockstep.core.group import connect
from lockstep.core.monitor import Monitor
from lockstep.core.vector import Requests
from lockstep.data import dataset
from lockstep.jobs import replica
from lockstep.jobs.context import Context
from lockstep.jobs.specs import TrainSpec, VerifySpec
from lockstep.jobs.train import StoppedError, train
from lockstep.jobs.verify import verify
from lockstep.kernels import fused
from lockstep.recipes import RECIPES, get_recipe

STEPS, WATCHED = 3, 1  # the step WATCHED is neither the first nor the last one
PORTABLE = ", portable"  # ends the names of cases in portable arithmetic
SUMMARIES = "summaries of every step"
ON_HOST = "images that stay in the memory of the host"
SETTINGS = {
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw"},
    "untrained": {"lr_factors.conv1": 0.0},
    "several labels": {"dataset": invented.MULTI_LABEL, "multi_label": True},
    "float16": {"precision": "float16"},
    SUMMARIES: {},
    ON_HOST: {},
    **{
        f"a model that is {flaw}": {"model": f"tests.gpu.simulated:{flaw}"}
        for flaw in ("waiting", "copying", "divided")
    },
}
# The devices of a case's processes.
MULTI_LABEL = {
    **{
        f"digits{PORTABLE}, {count} processes on one GPU": [("cuda", 0)] * number
        for number, count in enumerate(("two", "three", "four"), 2)
    },
    f"digits{PORTABLE}, a host with a GPU and one without": [("cuda", 0), ("cpu",)],
}
TUNED = f"photos-tuned{PORTABLE}"  # with small images
# They take minutes: only if they are asked for.
BY_NAME = {TUNED, f"digits{PORTABLE}, three processes on one GPU"}
RESUMED = f"digits{PORTABLE}, resumed on a CPU and on a GPU again"
MEMBER = "--member"
DRIVER = {
    "_lazy_init": None,
    "get_device_name": "a simulated GPU",
    "get_device_capability": (9, 0),
    "get_device_properties": SimpleNamespace(
        name="a simulated GPU", total_memory=1 << 33, multi_processor_count=1, uuid="0"
    ),
    "memory_allocated": 1 << 20,
    "max_memory_allocated": 1 << 20,
    "utilization": 50,
    "device_memory_used": 1 << 30,
    "synchronize": None,
    "is_current_stream_capturing": False,
}


class Flawed(nn.Linear):
    """A network for 8x8 images whose forward pass applies `flaw` to its logits."""

    def __init__(self, classes: int, flaw: Callable[[Tensor], Tensor]) -> None:
        super().__init__(64, classes)
        self.flaw = flaw

    def forward(self, x: Tensor) -> Tensor:
        return self.flaw(super().forward(x.flatten(1)))


def waiting(shape: tuple, classes: int) -> nn.Module:
    return Flawed(classes, lambda logits: logits if logits.sum() > 0 else -logits)


def copying(shape: tuple, classes: int) -> nn.Module:
    return Flawed(classes, lambda logits: logits * torch.ones(classes).to(logits.device))


def divided(shape: tuple, classes: int) -> nn.Module:
    return Flawed(classes, lambda logits: logits * torch.ones(classes))


class Waits(TorchDispatchMode):
    """Records where the host waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        # torch computes the backward pass of a GPU in one of its own
        self.threads: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.threads.add(threading.get_ident())
        result = func(*args, **(kwargs or {}))
        given, made = (
            {t.device.type for t in tree_leaves(values) if isinstance(t, Tensor) and t.dim()}
            for values in ((args, kwargs), result)
        )
        copies = func.name().startswith(("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_"))
        queued = copies and (
            (kwargs or {}).get("non_blocking") or any(argument is True for argument in args[2:3])
        )
        read = func.name() == "aten::_local_scalar_dense" and args[0].is_cuda
        down = "cuda" in given and "cpu" in made
        up = copies and "cpu" in given and "cuda" in made
        if read or ((down or up) and not queued):
            own = [f for f in traceback.extract_stack() if "/src/lockstep/" in f.filename]
            self.found.append(
                f"{Path(own[-1].filename).name}: {own[-1].name}" if own else func.name()
            )
        return result


def watched(waits: Waits, *args: object, **options: object) -> Generator[Requests]:
    """Train as the loop does, and record the waits of the step WATCHED."""
    updates = loop.updates(*args, **options)
    for step in itertools.count():
        with waits if step == WATCHED else contextlib.nullcontext():
            requested = next(updates, None)
        if requested is None:
            return
        yield requested


@contextlib.contextmanager
def simulating(*, native: bool, on_host: bool = False) -> Iterator[Waits]:
    """Answer what torch asks the driver itself. If `native`, also let the CPU compute by the
    operators of a GPU. The images stay `on_host`.
    """
    waits = Waits()
    with contextlib.ExitStack() as stack:
        for name, answer in DRIVER.items():
            stack.enter_context(
                mock.patch.object(torch.cuda, name, lambda *_, answer=answer: answer)
            )
        if native:  # Portable arithmetic has the same operators on both.
            stack.enter_context(operators_of_a_gpu())
        stack.enter_context(graphs_of_a_gpu())

        def read(recipe, placement, **_):
            splits = invented.load(recipe.dataset, 64, recipe.image_px)
            return {name: replace(split, mapped=on_host) for name, split in splits.items()}

        stack.enter_context(mock.patch.object(replica, "read_splits", read))
        stack.enter_context(mock.patch.object(dataset, "_MAX_COPIED_BYTES", 0))
        stack.enter_context(
            mock.patch.object(
                replica, "updates", lambda *args, **options: watched(waits, *args, **options)
            )
        )
        yield waits


def case(name: str, weights: Path) -> tuple[Recipe, Path | None]:
    """Return a short recipe, and the file `weights`, with random ones, if it starts from trained
    weights.

    `name` is that of a recipe, or of settings for `digits`.
    """
    changes = {
        "steps": STEPS,
        "batch": 16,
        "towers": max(2, len(MULTI_LABEL.get(name, ()))),
        "eval_batch": 16,
    }
    if changes["towers"] == 3:
        changes["batch"] = 15
    name, portable, _ = name.partition(PORTABLE)
    changes["arithmetic"] = "portable" if portable else "native"
    base = get_recipe(name if name in RECIPES else "digits").model_dump(mode="json")
    if name + PORTABLE == TUNED and portable:
        changes |= {"image_px": 32, "batch": 4}
    # The first step with another size of images also waits for the weights that resize them.
    changes |= (
        {"progressive.sizes_px": [24], "progressive.shares": [1.0]} if base["progressive"] else {}
    )
    recipe = make(base, changes | SETTINGS.get(name, {}))
    recipe = recipe.replace(precision="float32") if recipe.precision == "auto" else recipe
    if recipe.init_sha256 is None:
        return recipe, None
    torch.save(
        build_model(
            recipe.replace(head=None), (3, recipe.image_px, recipe.image_px), 10
        ).state_dict(),
        weights,
    )
    return recipe.replace(init_sha256=hashlib.sha256(weights.read_bytes()).hexdigest()), weights


def trained(
    recipe: Recipe, init: Path | None, device: torch.device, path: Path, summary_every: int = 100
) -> dict[str, Tensor]:
    """Return the tensors of the last checkpoint of a run on `device`."""
    placement = Placement(device=device.type, init=init, log_every=1, summary_every=summary_every)
    spec = TrainSpec(recipe=recipe, placement=placement, path=path, started=0.0)
    train(spec, Context(device=device))
    return load_file(next(path.glob(f"checkpoints/*{recipe.steps}.safetensors")))


def resumed(recipe: Recipe, path: Path) -> dict[str, Tensor]:
    """Return the tensors of the last checkpoint of a run that is resumed on another device after
    each step.
    """
    for device, stop in (("cuda:0", signal.SIGINT), ("cpu", signal.SIGINT), ("cuda:0", None)):
        spec = TrainSpec(
            recipe=recipe,
            placement=Placement(device=device),
            path=path,
            started=0.0,
            resume=path.exists(),
        )
        with contextlib.suppress(StoppedError):
            train(spec, Context(device=torch.device(device), stop=lambda stop=stop: stop))
    return load_file(next(path.glob(f"checkpoints/*{STEPS}.safetensors")))


def confirmed(recipe: Recipe, path: Path, device: str) -> bool:
    """Return whether `verify` on `device` finds the bits of a run that another device has trained
    too.
    """
    spec = VerifySpec(recipe=recipe, placement=Placement(device=device), path=path)
    record = verify(spec, Context(device=torch.device(device)))
    return record["same"] and {"result.json", "checkpoints", "model.safetensors"} <= {
        *record["compared"]
    }


def member(number: int, case_name: str, folder: Path) -> None:
    """Train as process `number` of the case's processes, which find each other in `folder`."""
    devices = MULTI_LABEL[case_name]
    with simulating(native=PORTABLE not in case_name):
        recipe, _ = case(case_name, folder / "weights.pt")
        device = torch.device(*devices[number])
        store = distributed.FileStore(str(folder / "store"), len(devices))
        group = connect(number, len(devices), device, store, Monitor(), shares_gpu=True)
        assert group.through_host
        spec = TrainSpec(
            recipe=recipe, placement=Placement(device="cuda:0,0"), path=folder / "run", started=0.0
        )
        train(spec, Context(device=device, group=group, local=number))
        group.close()


def together(case_name: str, folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the last checkpoint of a run of several processes, each in a program of
    its own.
    """
    command = [sys.executable, "-m", "tests.gpu.simulated", sys.argv[1], MEMBER, case_name, folder]
    members = [
        subprocess.Popen([*command, str(number)]) for number in range(len(MULTI_LABEL[case_name]))
    ]
    assert [one.wait() for one in members] == [0] * len(members)
    return load_file(next((folder / "run").glob(f"checkpoints/*{STEPS}.safetensors")))


def main() -> None:
    numerics.configure(1, exact=True)
    fused._CHUNK_BYTES = 1 << 18  # a few images: the batch of a case has several chunks
    if sys.argv[2:3] == [MEMBER]:
        _, _, _, name, folder, number = sys.argv
        GPU.set_as_cuda(True)
        member(int(number), name, Path(folder))
        # As Lockstep's workers end. The clean-up of an interpreter can abort beside torch's threads.
        os._exit(0)
    every = [*RECIPES, *SETTINGS, *(f"{name}{PORTABLE}" for name in RECIPES), *MULTI_LABEL, RESUMED]
    for name in sys.argv[2:] or [name for name in every if name not in BY_NAME]:
        GPU.set_as_cuda(PORTABLE in name)
        Graph.replays = 0
        line = {"case": name, "equal": False, "waits": [], "error": ""}
        try:
            with (
                simulating(native=PORTABLE not in name, on_host=name == ON_HOST) as waits,
                tempfile.TemporaryDirectory() as folder,
            ):
                recipe, init = case(name, Path(folder) / "weights.pt")
                cpu = trained(recipe, init, torch.device("cpu"), Path(folder) / "cpu")
                if name in MULTI_LABEL:
                    gpu = together(name, Path(folder))
                elif name == RESUMED:
                    gpu = resumed(recipe, Path(folder) / "gpu")
                    line["verified"] = [
                        confirmed(recipe, Path(folder) / "gpu", one) for one in ("cpu", "cuda:0")
                    ]
                else:
                    every = 1 if name == SUMMARIES else 100
                    device = torch.device("cuda", 0)
                    gpu = trained(recipe, init, device, Path(folder) / "gpu", every)
                line["differ"] = [key for key in gpu | cpu if not torch.equal(gpu[key], cpu[key])]
                line["equal"] = not line["differ"]
                line |= {
                    "waits": waits.found,
                    "threads": len(waits.threads),
                    "replays": Graph.replays,
                }
        except Exception as problem:
            line["error"] = f"{type(problem).__name__}: {problem}"
            traceback.print_exc()
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
