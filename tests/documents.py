"""The commands and the Python of README, CONTRIBUTING and docs, and shorter forms that run in seconds."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.recipes import RECIPES

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

# Commands that no test runs, by how they begin, and why. The part after it that is Lockstep's is parsed all the same.
NOT_RUN = {
    "make ": "tests/unit/test_contributing.py compares targets with the Makefile",
    "pip install ": "changes the environment the tests run in",
    ".ci/run": "runs the tests",
    "tensorboard ": "a server without an end",
    "python examples/use_exported.py": "needs a file of lockstep export; tests/cli/test_export.py runs it",
    "lockstep doctor": "tests/cli/test_doctor.py runs it",
    "lockstep serve ": "a server without an end; tests/cli/test_serve.py starts it",
    "curl ": "needs that server; tests/serve/test_application.py sends the same",
    "torchrun ": "tests/hosts/test_several_hosts.py runs it",
    "srun ": "needs Slurm; tests/hosts/test_several_hosts.py sets its variables",
    "mpirun ": "needs Open MPI; tests/hosts/test_several_hosts.py sets its variables",
    "RANK=": "needs several terminals; tests/hosts/test_several_hosts.py sets these variables",
    "lockstep train runs/killed ": "needs a host that has died; tests/hosts/test_faults.py resumes",
    "lockstep diff runs/two ": "needs that run too; tests/cli/test_verify.py compares others",
    "docker ": "needs Docker; tests/unit/test_dockerfile.py reads the file",
    "sbatch ": "needs Slurm; tests/unit/test_clusters.py checks the file",
    "kubectl ": "needs Kubernetes; tests/unit/test_clusters.py checks the file",
    "examples/clusters/ssh_torchrun.sh ": "tests/hosts/test_several_hosts.py runs it",
    "ray start ": "starts a server",
    "python examples/clusters/ray_train.py ": "tests/api/test_outer_launch.py runs it",
    "lockstep --install-completion": "writes to the user's shell; tests/cli/test_hints.py completes",
    "python -m benchmarks.": "minutes, and real data; tests/unit/test_results.py checks what it writes",
    "git clone ": "needs the network",
}

PHOTOS = "photos/"  # a user's own images, for which tests/synthetic.py stands in

# What is not here without a download, a GPU or minutes, and what stands for it.
_DOWNLOADED = [name for name in RECIPES if name != "digits"]
_SHORT = {
    "train": ["--steps", "4", "--inline"],
    "eval": ["--inline"],
    "verify": ["--inline"],
    "bench": ["--steps", "2", "--warmup", "0", "--processes", "1"],
}
_WITH_VALUE_LEFT_OUT = {
    "train": ("--epochs", "--steps", "--processes", "--device", "--data", "--lr"),
    "bench": ("--processes", "--steps", "--warmup", "--device", "--data"),
    "eval": ("--data", "--device", "--processes"),
    "verify": ("--from", "--steps", "--data", "--device", "--processes"),
}


class Block(NamedTuple):
    """A fenced block: its page, language and text."""

    page: str
    language: str
    text: str


def blocks(text: str, page: str = "") -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(page, language, body) for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)]


def lines(block: Block) -> list[str]:
    """The commands of a block: joined where a line ends in a backslash, without comments."""
    joined = block.text.replace("\\\n", " ")
    return [bare for line in joined.splitlines() if (bare := re.sub(r"(^|\s)#.*$", "", line).strip())]


def parts(line: str) -> list[str]:
    """The commands of Lockstep in a line of shell, each with its arguments."""
    found = []
    for piece in re.split(r";|&&|\||\bdo\b|\bdone\b", line):
        piece = re.sub(r"[12]?>+\s*\S+|\$\w+", lambda match: "1" if match[0][0] == "$" else "", piece)
        if (start := re.search(r"(?:^|[\s/]|-m )lockstep(?=\s|$)(?!\.)", piece)) is not None:
            found.append(f"lockstep{piece[start.end() :]}")
    return found


def reason(line: str) -> str | None:
    """Why no test runs a line; None if one does."""
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)


def shortened(words: list[str]) -> list[str]:
    """The arguments of `lockstep` for something that takes seconds and needs no download."""
    command, *rest = words or [""]
    if command == "data":
        return [command, *("digits" if word in ("cifar10", "mnist", "fashion-mnist") else word for word in rest)]
    if command not in _SHORT:
        return words
    if PHOTOS in rest:
        return [command, *rest, *_SHORT[command], "--batch", "8", "--set", "image_px=32", "--set", "eval_batch=20"]
    kept: list[str] = []
    skip = False
    for word, before in zip(rest, ["", *rest], strict=False):
        if skip or word in _WITH_VALUE_LEFT_OUT[command]:
            skip = not skip
        elif word in _DOWNLOADED and before != "--name":
            kept.append("digits")
        elif word.startswith("dataset="):
            kept.append("dataset=digits")
        elif word.startswith("steps="):
            kept.append("steps=1:3")
        elif word.startswith("held_out="):
            kept.append("held_out=50")
        else:
            kept.append(word)
    first = kept[0] if kept and not kept[0].startswith("-") else ""
    if command == "train" and "/" in first:
        return [command, *kept, "--inline"]  # a run that is resumed has the length of its recipe
    named = first or command == "eval" or "--init" in kept  # --init RUN names the recipe too
    return [command, *([] if named else ["digits"]), *kept, *_SHORT[command]]


def shortened_train(train: Callable[..., Any]) -> Callable[..., Any]:
    """`lockstep.train` for something that takes seconds."""

    def short(what: Any = "digits", **options: Any) -> Any:
        if what == PHOTOS:
            options |= {"batch": 8, "settings": {**options.get("settings", {}), "image_px": 32, "eval_batch": 20}}
        return train(what, **{**options, "steps": 4, "epochs": None})

    return short


# What a document calls `package.module:function`, for a page that only names it.
MODEL = """from torch import nn


def function(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
"""


def words_of(part: str) -> list[str]:
    """The arguments in a part of a line."""
    return shlex.split(part)[1:]
