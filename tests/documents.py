"""The commands that Lockstep prints, from documents and source, and shorter forms that run in seconds."""

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

from lockstep.commands.program import app
from lockstep.recipes import RECIPES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/lockstep"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))

# Commands that no test runs wherever they stand, by how they begin, and why. A comment above a block, as in
# `<!-- not run: needs Slurm -->`, says it of all its lines. Each command of Lockstep in them is parsed all the same.
NOT_RUN = {
    "make ": "tests/unit/test_contributing.py compares targets with the Makefile",
    "pip install ": "changes the environment the tests run in",
    ". .venv/bin/activate": "the same",
    ".ci/run": "runs the tests",
    "tensorboard ": "a server without an end",
    "lockstep doctor": "tests/cli/test_doctor.py runs it",
    "lockstep serve ": "a server without an end; tests/cli/test_serve.py starts it",
    "lockstep --install-completion": "writes to the user's shell",
    "LOCKSTEP_MIRROR=": "needs a server of files; tests/cli/test_download.py starts one",
    "curl ": "needs the server; tests/serve/test_application.py sends the same",
}

PHOTOS = "photos/"  # a user's own images, for which tests/synthetic.py stands in

# What is not here without a download, a GPU or minutes, and what stands for it.
_DOWNLOADED = [name for name in RECIPES if name != "digits"]
_SHORT = {
    "train": ["--steps", "4", "--inline"],
    "eval": ["--processes", "1"],
    "verify": ["--processes", "1"],
    "export": [],
}
_WITH_VALUE_LEFT_OUT = {
    "train": ("--epochs", "--steps", "--processes", "--device", "--data", "--lr"),
    "eval": ("--data", "--device", "--processes"),
    "export": ("--data",),
    "verify": ("--from", "--data", "--device", "--processes"),
}


class Block(NamedTuple):
    """A fenced block: its page, language and text, and why no test runs it; "" if one does."""

    page: str
    language: str
    text: str
    not_run: str = ""


def blocks(text: str, page: str = "") -> list[Block]:
    """Return the fenced blocks of a page."""
    found = re.findall(r"^(?:<!-- not run: (.+?) -->\n)?```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [Block(page, language, body, why) for why, language, body in found]


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


def reason(line: str, block: Block | None = None) -> str | None:
    """Why no test runs a line; None if one does."""
    if block is not None and block.not_run:
        return block.not_run
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)


def spans(text: str) -> list[str]:
    """Return the commands of Lockstep in the inline code of a text."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [part for span in re.findall(r"`([^`]+)`", text) for part in parts(" ".join(span.split()))]


def examples_of_help() -> dict[str, list[str]]:
    """Return the examples of every `lockstep COMMAND --help`, by command, without the words beside them."""
    found, todo = {}, [("lockstep", get_command(app))]
    while todo:
        name, command = todo.pop()
        todo += [(f"{name} {inner}", each) for inner, each in getattr(command, "commands", {}).items()]
        _, _, text = (command.help or "").partition("Examples:\n")
        lines = [line.strip() for line in text.partition("\n\n")[0].splitlines()]
        found[name] = [re.split(r"\s{2,}", line)[0] for line in lines] + re.findall(r"  then: (.*)", text)
    return found


def calls_in_source() -> Iterator[tuple[str, str]]:
    """Yield (place, command) of each call of `command` in the source: 2 stands for what only the run can say."""
    for path, node in _nodes():
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", getattr(node.func, "id", "")) != "command":
            continue
        words = [each.value if isinstance(each, ast.Constant) else "2" for each in node.args
                 if not isinstance(each, ast.Starred)]  # fmt: skip
        if words and words[0] != "2" and ast.unparse(node.func) != "app.command":
            yield f"{path}:{node.lineno}", shlex.join(["lockstep", *("2" if word == "N" else word for word in words)])


def _nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(ROOT), node


def lines_of_examples() -> Iterator[tuple[str, str]]:
    """Yield (name, command) of the indented commands in the comments and docstrings of examples/."""
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.suffix in (".py", ".sh", ".sbatch", ".toml", ".yaml"):
            for line in re.findall(r"^(?:#  +|    )(\S.*)$", path.read_text().replace("\\\n", " "), re.M):
                if line.startswith(("lockstep ", "torchrun ", "srun ")):
                    yield path.name, re.split(r"\s{2,}", line)[0]


def shortened(words: list[str]) -> list[str]:
    """The arguments of `lockstep` for something that takes seconds and needs no download."""
    command, *rest = words or [""]
    if command == "data":
        downloaded = any(word in ("cifar10", "mnist") for word in rest)
        return [command, rest[0], "digits"] if downloaded else words
    if command == "show":
        return [command, *("digits" if word in _DOWNLOADED else word for word in rest)]
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
