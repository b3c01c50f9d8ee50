"""Functions and constants that several test modules use."""

import contextlib
import json
import math
import os
import resource
import socket
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lockstep import hardware
from lockstep.config.overrides import make
from lockstep.config.placement import Placement
from lockstep.core.build import build_model
from lockstep.core.network import Network, persistent_buffers
from lockstep.core.state import State
from lockstep.core.tower import Tower
from lockstep.data.dataset import Dataset
from lockstep.errors import LockstepError
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.run import Run
from tests.images import noise

CPU = torch.device("cpu")

# The exit codes that the manual states.
USAGE, DATA, ENVIRONMENT = 2, 3, 4

# The shape of an image for each model of the registry.
SHAPES = {
    "digits": (1, 8, 8),
    "tutorial": (3, 24, 24),
    "mnist": (1, 28, 28),
    "whitened": (3, 16, 16),
    "residual": (3, 16, 16),
    "efficientnet-lite0": (3, 32, 32),
    "efficientnet-lite2": (3, 32, 32),
}
WHITENED = {"model": "whitened", "augmentation": "flip-translate", "weight_decay": {}}

# What is wider than the window, or than what it stands in: it would scroll sideways.
WIDER = """[...document.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 ||
  e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX != "visible").map(e => e.outerHTML.slice(0, 90))"""

# Variables with which this machine computes other bits.
OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
NEWER_CPU = pytest.mark.skipif(
    "avx512f" not in hardware.cpu()["flags"].split(),
    reason="this CPU has no more than AVX2, which the test takes away",
)


def refused(done, code, *words):
    """Require that a command ended with `code` and one clear message that has `words`."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("lockstep: ") or "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4  # A usage error shows the usage, too.
    for word in words:
        assert word in done.stderr, done.stderr


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def flip(path):
    """Flip a bit of the last byte of a file."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def as_stopped(run):
    """Return the run, finished after twelve steps, as if it had been killed after step 4."""
    (run / "result.json").unlink()
    for step in (8, 12):
        (run / f"checkpoints/step-{step:09d}.safetensors").unlink()
    return run


def summaries(folder):
    """Return all summaries of a folder, as TensorBoard's own reader has them."""
    sizes = {"scalars": 0, "histograms": 0, "images": 0}
    return EventAccumulator(str(folder), sizes).Reload()


class Parts(NamedTuple):
    """What computes a step in this process. `model` has the same initial weights, for itself."""

    tower: Tower
    state: State
    model: nn.Module


def parts(recipe, shape=(3, 24, 24), examples=96):
    model = build_model(recipe, shape, 10)
    network = Network(recipe, build_model(recipe, shape, 10), shape, CPU)
    state = State(recipe, dict(model.named_parameters()), persistent_buffers(model), CPU)
    return Parts(Tower(recipe.bind(examples), network), state, model)


def labelled(pixels):
    """Return the dataset of these images, in turn of ten classes."""
    return Dataset.of(pixels, np.arange(len(pixels)) % 10, tuple("0123456789"))


def cifar_like(count=96, side=24):
    return labelled(torch.randint(256, (count, side, side, 3), dtype=torch.uint8).numpy())


def plan(recipe, step, examples):
    return recipe.bind(examples).plan(step)


def recipe_with(name, *changes, **how):
    """Return a built-in recipe with other settings; `how` is for `make`."""
    return make(get_recipe(name), *changes, **how)


def tutorial_recipe(network, towers):
    decay = ["local3.weight", "local4.weight"] if network == "tutorial" else ["3.weight"]
    changes = {
        "model": network,
        "towers": towers,
        "batch": 48,
        "weight_decay": dict.fromkeys(decay, 0.004),
    }
    return recipe_with("cifar10-tutorial", changes)


def replica(fields, side=32, ctx=None):
    """Return a replica of `cifar10-tutorial` with `fields`, on 40 random images."""
    images = noise(0, 40, side, side, 3)
    data = Dataset.of(images, np.arange(40) % 10, tuple("abcdefghij"))
    recipe = recipe_with("cifar10-tutorial", fields)
    return Replica(recipe, Placement(), ctx or Context(), {"train": data, "test": data})


def linear(shape, classes):
    """Return the smallest network, for tests of everything around it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def smooth(shape, classes):
    """A network without kinks, so that float32 and float64 gradients differ only by rounding."""
    channels, height, width = shape
    conv = nn.Conv2d(channels, 4, 5, stride=3)
    side = [(pixels - 5) // 3 + 1 for pixels in (height, width)]
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(4 * side[0] * side[1], classes))


class Loud(torch.nn.Linear):
    """A network whose gradients overflow float16 until the scale is low enough."""

    def forward(self, x):
        return super().forward(x.flatten(1) * 512)


def loud(shape, classes):
    return Loud(math.prod(shape), classes)


class Weights:
    """A stand-in for a `State`, with the members that a Saver uses."""

    def __init__(self):
        self.update_lock = threading.Lock()
        self.step, self.weight = 0, torch.zeros(1000)

    def state_dict(self):
        return {"step": torch.tensor(self.step), "parameter/w": self.weight}

    def update(self):
        with self.update_lock:
            self.step += 1
            self.weight.add_(1.0)


def save(saves, state, best=None):
    saves.save(state.state_dict(), {}, state.update_lock, best)


def steps(folder):
    """Return the steps of which `folder` has a checkpoint."""
    return [*statefile.checkpoints_in(folder)]


def lockstep_error(match, code=None):
    """Require that the block ends with a LockstepError whose message matches, and with this code."""
    return pytest.raises(LockstepError, match=match, check=lambda error: code in (None, error.code))


def succeeded(done):
    assert done.returncode == 0, done.stderr
    return done


def record_of(done):
    """Return the JSON with which a command's output ends."""
    text = succeeded(done).stdout
    return json.loads(text[text.find("\n{") + 1 :])


def rows_of(run, kind):
    return [row for row in Run(run).metrics() if row["kind"] == kind]


def read_json(path):
    return json.loads(path.read_text())


def read_rows(path):
    """Return the rows of a file that has a JSON object in each line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def many_open_files():
    """Keep more files open within the context than select() can wait for."""
    with contextlib.ExitStack() as stack:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2048), limit[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        yield
