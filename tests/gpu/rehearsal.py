"""Carries tensors on "cuda" through the real code on a CPU build of torch: `python -m tests.gpu.rehearsal LIBRARY`.

The tensors are torch's FakeTensors: they have shapes, types and devices, and no values. An operation on two devices is
an error, and so is one that must know a value, because it would wait for the GPU. LIBRARY is fake_cuda.cpp, compiled.
It prints one line of JSON for each case: its name, the stages that it passed, the copies that make the host wait for
the GPU in a step that nobody reads, and the error, if there is one.
"""

import contextlib
import ctypes
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

if __name__ == "__main__":  # before torch is imported: it asks once whether there is a driver
    libraries = Path(str(importlib.util.find_spec("torch").origin)).parent / "lib"
    ctypes.CDLL(str(libraries / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(sys.argv[1])

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep import numerics
from lockstep.config.overrides import make
from lockstep.config.recipe import Recipe
from lockstep.core.evaluate import evaluate
from lockstep.core.features import Prefix, head_of
from lockstep.core.group import Group
from lockstep.core.loop import train
from lockstep.core.model import build_model
from lockstep.core.monitor import Monitor
from lockstep.core.network import Network, persistent_buffers
from lockstep.core.reduction import Reduction
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.core.vector import Metrics, Requests
from lockstep.data.dataset import Dataset
from lockstep.jobs import probe
from lockstep.listeners.events import Listener
from lockstep.listeners.log import Log
from lockstep.recipes import RECIPES, get_recipe

GPU = torch.device("cuda", 0)
SIDES = {"digits": (8, 1), "mnist": (28, 1)}  # pixels and channels of the images
MENU = {
    "sgd": {"optimizer": "sgd", "optimizer.momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw"},
    "float16": {"precision": "float16"},
    "untrained": {"lr_factors.conv1": 0.0},
    **{f"reduction {kind}": {} for kind in ("central", "allreduce")},
    "a model that waits": {"model": "tests.gpu.rehearsal:waiting"},
    "a model that copies": {"model": "tests.gpu.rehearsal:copying"},
    "a model on two devices": {"model": "tests.gpu.rehearsal:divided"},
}


class Two(Group):
    """Process 0 of two, whose messages carry no values. The first table to be gathered ends the work on the GPU."""

    processes = 2

    def gather(self, table: Tensor) -> Tensor:
        assert table.device == GPU
        raise EndedError


class EndedError(Exception):
    """What is rehearsed has computed everything, and only reads its results now."""


class Unread(Listener):
    """A listener that wants none of the steps, so nothing of them may be read."""

    every = 1000


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
    """Records the copies between a GPU and the host that make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, made = ({t.device.type for t in tree_leaves(values) if isinstance(t, Tensor) and t.numel()}
                       for values in ((args, kwargs), result))  # fmt: skip
        copies = func.name().startswith(("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_"))
        queued = (kwargs or {}).get("non_blocking") or any(argument is True for argument in args[2:3])
        if ("cuda" in given and "cpu" in made) or (copies and "cpu" in given and "cuda" in made and not queued):
            self.found.append(line_of(traceback.extract_stack()))
        return result


def line_of(frames: traceback.StackSummary) -> str:
    """Return the last line of the program in a stack."""
    own = [f for f in frames if "/lockstep/" in f.filename and "/site-packages/" not in f.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].line}" if own else ""


def converted(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do what nn.Module._apply does, which cannot put a FakeTensor in the place of a tensor."""
    with torch.no_grad():
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = nn.Parameter(change(parameter.detach()), parameter.requires_grad)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = change(buffer)
    return module


@contextlib.contextmanager
def rehearsing() -> Iterator[Waits]:
    """Let "cuda" be a device whose tensors have no values. What asks the driver itself has stand-ins."""
    driver = {"memory_allocated": 1 << 20, "utilization": 50, "synchronize": None, "is_current_stream_capturing": False}
    with contextlib.ExitStack() as stack:
        for name, answer in driver.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer: answer))
        stack.enter_context(mock.patch.object(Tensor, "pin_memory", lambda self: self))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", converted))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # A GPU's gradients have own threads.
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(Waits())


def rehearse(recipe: Recipe, kind: str, passed: list[str]) -> list[str]:
    """Rehearse a run, and append the stages to `passed`. Return the waits of a step that nobody reads."""
    side, channels = SIDES.get(recipe.dataset, (recipe.image_px or 32, 3))
    count = recipe.batch * 4
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    dataset = Dataset.of(images, np.arange(count) % 10, tuple("abcdefghij"))
    shape = recipe.augmentation.shape(side, side, channels)
    model, group = build_model(recipe, shape, 10), Two() if recipe.towers > 1 else Group()
    prefix = None if recipe.head is None else Prefix(recipe, model, shape, torch.device("cpu"))
    course, monitor = recipe.bind(count), Monitor()
    monitor.use(GPU)
    with rehearsing() as waits:
        if prefix is not None:
            # It checks the network's values when it is made.
            prefix._device, prefix._network = GPU, Network(recipe, prefix._network.module, shape, GPU)
            prefix(torch.from_numpy(images[:2]))
            features = torch.zeros(count, *prefix.shape, dtype=torch.uint8)
            dataset = Dataset(features, dataset.labels, dataset.classes, "features")
            passed.append("features")
        tensors = {name: tensor.clone() for name, tensor in persistent_buffers(model).items()}
        state = State(recipe, dict(model.named_parameters()), tensors, GPU)
        if prefix is not None:
            model, shape = head_of(recipe.head, model), prefix.output
            state = State(recipe, dict(model.named_parameters()), persistent_buffers(model), GPU, prefix.tensors)
        network = Network(recipe, model, shape, GPU)
        dataset = dataset.to(GPU)
        passed.append("setup")
        with mock.patch.object(probe, "digest", lambda tensors: [t.device for t in tensors] and bytes(32)):
            probe.probe(recipe, network, state, dataset)
        passed.append("probe")
        tower, reduction = Tower(course, network), Reduction(group, recipe.towers, kind, GPU)
        log = Log(course, [Unread()], monitor, GPU)
        state.step = 1  # Every listener wants step 0.
        reads = []

        def read(self: Metrics) -> tuple:
            reads.append(self.requests.device)
            return Requests(), []

        with mock.patch.object(Metrics, "read", read):
            steps = train(dataset, tower, reduction, state, log)
            next(steps)  # prepares what all steps use
            waits.found.clear()
            next(steps)
        found = list(waits.found)
        assert reads == [GPU, GPU]
        passed.append("steps")
        if state.may_skip:
            state.skip()
            passed.append("skip")
        saved = state.tensors()
        assert {tensor.device.type for tensor in saved.values()} == {"cpu"}
        with contextlib.suppress(EndedError), torch.no_grad():
            evaluate(network, state.parameters, state.buffers, dataset, Two())
        passed.append("evaluation")
    return found


def cases() -> Iterator[tuple[str, Recipe, str]]:
    """Yield name, recipe and reduction: all recipes that may compute on a GPU, then the menu of settings."""
    short = {"steps": 4}
    for name in RECIPES:
        recipe = make(get_recipe(name).model_dump(mode="json"), short)
        precision = "bfloat16" if recipe.precision == "auto" else recipe.precision
        yield name, recipe.replace(precision=precision, arithmetic="native"), "tree"
    for name, changes in MENU.items():
        kind = name.removeprefix("reduction ") if name.startswith("reduction") else "tree"
        base = get_recipe("digits").model_dump(mode="json")
        yield name, make(base, {**short, "arithmetic": "native", "eval_batch": 64, **changes}), kind


def main() -> None:
    numerics.configure(1, exact=True)
    for name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_"):  # They change tensors in place and return nothing.
        fake_impls.register_op_impl(getattr(torch.ops.aten, name).default)(lambda *_, **__: None)
    for name, recipe, kind in cases():
        passed, error, waits = [], "", []
        try:
            waits = rehearse(recipe, kind, passed)
        except Exception as problem:
            where = line_of(traceback.extract_tb(problem.__traceback__))
            error = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''} ({where})"
        print(json.dumps({"case": name, "passed": passed, "waits": waits, "error": error}), flush=True)


if __name__ == "__main__":
    main()
