"""Runs of the real program that tests disturb: started until they train, with models that are slow
or fail.
"""

import json
import os
import re
import subprocess
import sys

import psutil
import pytest

STEPS = 60
RUN = "runs/x"
TRAIN = ("train", "--name", "x", "--log-every", 1, "--save-every", 5)
HANGS = "no process has moved on for"

_MODEL = """
import os, pathlib, signal, time
from lockstep.models.digits import Digits

class Model(Digits):
    def __init__(self, shape, classes):
        {at_build}
        super().__init__(shape, classes)
        self.first = self.logits.bias.detach().clone()

    @property
    def moved(self):  # training has changed the weights for some steps
        return self.training and float((self.logits.bias.detach() - self.first).abs().max()) > 0.01

    def forward(self, images):
        if {condition}:
            {action}
        return super().forward(images)

build = Model
"""


def write_model(folder, name, condition="False", action="pass", *, at_build="pass"):
    """Write NAME.py with a `build` whose network does `action` before a forward pass under
    `condition`.
    """
    (folder / f"{name}.py").write_text(
        _MODEL.format(condition=condition, action=action, at_build=at_build)
    )


def read_until(stream, text):
    """Read what a program prints up to a line with this text."""
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return
    pytest.fail("the run has ended: " + "".join(lines))


def until_step(process, step):
    """Read what a program prints up to the line of this step."""
    read_until(process.stdout, f": step {step},")


def kill(process, *, workers_only=False):
    """Kill a program with its worker processes, or these alone."""
    children = psutil.Process(process.pid).children(recursive=True)
    for victim in children if workers_only else [psutil.Process(process.pid), *children]:
        victim.kill()


def begin(started, processes, *options, steps=STEPS, **environment):
    """A run that has trained a few steps, and its launcher's children."""
    process = started(*TRAIN, "--steps", steps, "--processes", processes, *options, **environment)
    until_step(process, 7)
    return process, psutil.Process(process.pid).children(recursive=True)


def end(process):
    """Return (stdout, stderr) of a program that ends."""
    out, err = process.communicate(timeout=240)
    assert "Traceback" not in err
    return out, err


def workers(children):
    """The worker processes, in order of number."""
    found = [child for child in children if "lockstep.launch.worker" in " ".join(child.cmdline())]
    return sorted(found, key=lambda worker: int(worker.environ()["RANK"]))


def gone(children):
    """Whether all these processes end."""
    return not psutil.wait_procs(children, timeout=20)[1]


def resume(run, processes, path=RUN):
    """Return the SHA-256 of the weights of a run that is resumed by `run`, which is `program` or
    `here`.
    """
    done = run("train", path, "--resume", "--processes", processes, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["weights_sha256"]


def sha256(out):
    """The SHA-256 in the last lines that a run prints."""
    return re.search(r"sha256 +([0-9a-f]{64})", out)[1]


def torchrun(folder, *options, agent=()):
    """Start `torchrun` with two processes that train, in `folder`; `agent` are options of torchrun
    itself.
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        2,
        "--max-restarts",
        3,
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "--monitor-interval",
        0.2,
        *agent,
        "-m",
        "lockstep",
        "train",
        "--name",
        "x",
        "--steps",
        STEPS,
        "--log-every",
        1,
        "--save-every",
        5,
        *options,
    ]
    return subprocess.Popen(
        [*map(str, command)],
        cwd=folder,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks(process):
    """The worker processes of the programs that torchrun has started, in order of number."""
    return workers(psutil.Process(process.pid).children(recursive=True))
