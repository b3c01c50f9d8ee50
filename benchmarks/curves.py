"""The picture of one result: the loss of four runs of `digits`, and the same of PyTorch's
DistributedDataParallel.

`lockstep train digits` runs on 1, 2 and 4 processes. A fourth run loses a process by kill -9 and
resumes on another number of processes. The losses of all steps must be equal in every bit, as the
weights at the end must be: else nothing is drawn.
"""

import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import LOCKSTEP, record_of
from benchmarks.survival import end, workers_of
from benchmarks.svg import element, label, picture

PROCESSES = (1, 2, 4)
BEFORE, AFTER = 4, 3  # the processes of the run that is killed, and those of its resume
KILLED_AT = 110  # the step
TRAIN = (*LOCKSTEP, "train")
LONGEST_S = 300.0  # for one run

WIDTH, LEFT, RIGHT = 480, 52, 462
TOP, HEIGHT = 66, 190  # of the loss
BELOW, DRIFT = 384, 120  # of the differences
COLOURS = ("#d1495b", "#2e86ab", "#edae49", "#66a182")
MEAN = 8  # steps whose losses a point of the curve is the mean of: single ones are noisy
DASH = 7.0  # the length of each colour's dash on the common line
PEER_TEXT = (
    "PyTorch DistributedDataParallel with",
    "deterministic algorithms, on 2 processes",
    "(solid) and on 4 (dashed): only the order",
    "of additions differs, without dropout",
    "or batch norm",
)
STYLE = """<style>
  .title { font-size: 15px; font-weight: 600; }
  .axis { stroke: #8c959f; stroke-width: 1; fill: none; }
  .grid { stroke: #d0d7de; stroke-width: 0.7; }
  .other { stroke: #59636e; stroke-width: 1.6; fill: none; }
  .dashed { stroke-dasharray: 5 3; }
  .hash { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 11px; }
  .run { stroke-width: 2.4; fill: none; }
  @media (prefers-color-scheme: dark) {
    .axis { stroke: #656c76; }
    .grid { stroke: #2a313c; }
    .other { stroke: #9198a1; }
  }
</style>"""


class Measured(NamedTuple):
    """The loss of each step and the hash that all four runs have; where one was killed and resumed;
    and the losses of DistributedDataParallel by number of processes.
    """

    losses: list[float]
    sha256: str
    killed: int
    resumed: int
    peer: dict[str, list[float]]


def options(name: str, processes: int) -> list[str]:
    """Return the words that train digits and log every step."""
    return ["digits", "--name", name, "--processes", str(processes), "--log-every", "1", "--quiet"]


def losses(run: Path) -> list[float]:
    """Return the losses that a run has logged, by step. A line that is being written is left
    out.
    """
    found: dict[int, float] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True):
        if line.endswith("\n") and (row := json.loads(line))["kind"] == "step":
            found[row["step"]] = row["cross_entropy"]
    return [found[step] for step in sorted(found)]


def train_and_kill(folder: Path) -> tuple[int, int]:
    """Train the run "killed": kill a process of it, then resume on another number. Return the step
    at which it was killed, and the one from which it resumed.
    """
    command = [*TRAIN, *options("killed", BEFORE), "--save-every", "40", "--max-restarts", "0"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, text=True)
    run, until = folder / "runs/killed", time.monotonic() + LONGEST_S
    try:
        while not (run / "metrics.jsonl").exists() or len(losses(run)) <= KILLED_AT:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the run ended before a process of it was killed")
            time.sleep(0.01)
        workers_of(process)[-1].kill()
        if process.wait(60) == 0:
            raise SystemExit("the run has survived kill -9 without a restart")
    finally:
        end(process)
    killed = len(losses(run))
    kept = max((run / "checkpoints").glob("step-*.safetensors")).stem
    words = ["runs/killed", "--resume", "--processes", str(AFTER), "--log-every", "1", "--quiet"]
    subprocess.run([*TRAIN, *words], cwd=folder, check=True)
    return killed, int(kept.removeprefix("step-"))


def measure() -> Measured:
    """Train the four runs, and the peer. Raises: SystemExit if the four differ in a bit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for processes in PROCESSES:
            words = [*TRAIN, *options(f"on-{processes}", processes)]
            subprocess.run(words, cwd=folder, check=True)
        killed, resumed = train_and_kill(folder)
        runs = [folder / "runs" / name for name in (*(f"on-{n}" for n in PROCESSES), "killed")]
        hashes = {json.loads((run / "result.json").read_text())["weights_sha256"] for run in runs}
        curves = {tuple(losses(run)) for run in runs}
        if len(hashes) > 1 or len(curves) > 1:
            raise SystemExit(f"the runs differ: {sorted(hashes)}")
    command = [sys.executable, "-m", "benchmarks.peers.ddp_drift"]
    peer: dict[str, Any] = {str(n): record_of([*command, n])["losses"] for n in PROCESSES}
    return Measured(list(curves.pop()), hashes.pop(), killed, resumed, peer)


def draw(measured: Measured) -> str:
    """Return the picture as an SVG file."""
    title = "One result: the loss of four runs is one line"
    parts = [STYLE, *_loss(measured), *_differences(measured)]
    return picture(WIDTH, BELOW + DRIFT + 74, title, parts)


def path(points: Sequence[tuple[float, float]]) -> str:
    """Return the commands of an SVG path through `points`."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def line(values: Sequence[float], top: float, height: float, low: int, high: int) -> str:
    """Return the path of `values`, one a step, on a logarithmic axis from 10^low to 10^high."""
    last = len(values) - 1
    return path(
        [
            (LEFT + (RIGHT - LEFT) * step / last, _y(value, top, height, low, high))
            for step, value in enumerate(values)
        ]
    )


def curve(values: Sequence[float]) -> str:
    """Return the path of the loss, each point the mean of the last MEAN steps."""
    means = [statistics.fmean(values[max(0, at - MEAN) : at]) for at in range(1, len(values) + 1)]
    return line(means, TOP, HEIGHT, -3, 1)


def _y(value: float, top: float, height: float, low: int, high: int) -> float:
    exponent = max(low, min(high, math.log10(value) if value else low))
    return top + height * (high - exponent) / (high - low)


def _axes(top: float, height: float, low: int, high: int, every: int, steps: int) -> list[str]:
    parts = []
    for exponent in range(low, high + 1, every):
        y = top + height * (high - exponent) / (high - low)
        parts.append(element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        text = f"{10.0**exponent:g}" if exponent >= -3 else f"1e{exponent}"
        parts.append(label(LEFT - 6, y + 4, text, anchor="end"))
    bottom = top + height
    parts.append(element("path", class_="axis", d=f"M{LEFT} {top}V{bottom}H{RIGHT}"))
    for step in range(0, steps, 50):
        x = LEFT + (RIGHT - LEFT) * step / (steps - 1)
        parts.append(label(x, bottom + 16, f"step {step}" if step else "0", anchor="middle"))
    return parts


def _loss(measured: Measured) -> list[str]:
    steps = len(measured.losses)
    parts = [
        label(16, 27, "Four runs, one line", "title"),
        label(16, 46, f"Cross-entropy of lockstep train digits in training, mean of {MEAN} steps"),
        *_axes(TOP, HEIGHT, -3, 1, 1, steps),
    ]
    for at, what in (
        (measured.killed, "kill -9 of a process"),
        (measured.resumed, "resumed from here"),
    ):
        x = LEFT + (RIGHT - LEFT) * at / (steps - 1)
        left = at == min(measured.killed, measured.resumed)
        parts += [
            element("line", class_="axis dashed", x1=x, x2=x, y1=TOP + 96, y2=TOP + HEIGHT),
            label(
                x + (-5 if left else 5), TOP + HEIGHT - 10, what, anchor="end" if left else "start"
            ),
        ]
    d = curve(measured.losses)
    names = [*(f"{n} process{'es' * (n > 1)}" for n in PROCESSES)]
    names.append(f"{BEFORE} processes, one killed; resumed on {AFTER}")
    for number, (colour, name) in enumerate(zip(COLOURS, names, strict=True)):
        dashes = {
            "stroke_dasharray": f"{DASH:g} {DASH * (len(COLOURS) - 1):g}",
            "stroke_dashoffset": f"{-DASH * number:g}",
        }
        parts.append(element("path", class_="run", stroke=colour, d=d, **dashes))
        y = TOP + 8 + 17 * number
        mark = path([(196, y), (216, y)])
        parts.append(element("path", class_="run", stroke=colour, d=mark))
        parts.append(label(223, y + 4, name))
    y = TOP + HEIGHT + 38
    parts.append(label(16, y, "Weights of all four, sha256:"))
    parts.append(label(16, y + 17, measured.sha256, "hash"))
    return parts


def _differences(measured: Measured) -> list[str]:
    steps = len(measured.losses)
    low, high = -8, -2
    parts = [
        label(16, BELOW - 36, "Drift from the run on one process", "title"),
        label(16, BELOW - 17, "Largest difference of the loss so far, on the same images"),
        *_axes(BELOW, DRIFT, low, high, 2, steps),
    ]
    one = measured.peer["1"]
    for n, kind in (("2", "other"), ("4", "other dashed")):
        differences = [abs(a - b) for a, b in zip(one, measured.peer[n], strict=True)]
        drift = list(itertools.accumulate(differences, max))
        parts.append(element("path", class_=kind, d=line(drift, BELOW, DRIFT, low, high)))
    x, y = LEFT + 130, BELOW + 40
    for number, text in enumerate(PEER_TEXT):
        parts.append(label(x, y + 15 * number, text))
    y = BELOW + DRIFT + 42
    parts.append(element("line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
    parts.append(label(LEFT - 6, y + 4, "0", anchor="end"))
    d = path([(LEFT, y), (RIGHT, y)])
    for number, colour in enumerate(COLOURS[1:]):
        dashes = {
            "stroke_dasharray": f"{DASH:g} {DASH * 2:g}",
            "stroke_dashoffset": f"{-DASH * number:g}",
        }
        parts.append(element("path", class_="run", stroke=colour, d=d, **dashes))
    parts.append(label(LEFT + 8, y + 18, "Lockstep: no difference, at any step of any run"))
    return parts
