"""The commands that Lockstep prints, from documents and source."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from typer.main import get_command

from lockstep.commands.program import app
from tests import synthetic

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/lockstep"
PROGRAM = get_command(app)
# What needs a network, a GPU, another package, program or host, other labels than cat and dog, or a
# person.
OUTSIDE = re.compile(
    r"(\. |make|pip|uv|export|RANK=|docker|curl|tensorboard|lockstep (serve|data fetch|doctor"
    r"|--install|.*cuda|.*--model (timm:|efficientnet)|.*--to (litert|openvino)|.*--label-(separator|from)))"
)
LINEAR = """from math import prod
from torch import nn
def function(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))
"""
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


@cache
def trees(folder: Path) -> dict[str, ast.Module]:
    """Return the syntax trees of the modules of a folder, by their paths in it."""
    return {
        str(path.relative_to(folder)): ast.parse(path.read_text())
        for path in sorted(folder.rglob("*.py"))
    }


class Block(NamedTuple):
    """A fenced block."""

    page: str
    language: str
    text: str


def blocks(text: str, page: str = "") -> list[Block]:
    """Return the fenced blocks of a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [Block(page, language, body) for language, body in found]


def lines(block: Block) -> list[str]:
    """The commands of a block: joined where a line ends in a backslash, without comments."""
    joined = block.text.replace("\\\n", " ")
    return [
        bare for line in joined.splitlines() if (bare := re.sub(r"(^|\s)#.*$", "", line).strip())
    ]


def runnable(block: Block) -> list[str]:
    """Return the commands of a block of shell that work on a bare machine in a folder that
    `furnish` has made.
    """
    return [line for line in lines(block) if block.language == "sh" and not OUTSIDE.match(line)]


def furnish(folder: Path) -> None:
    """Make what the commands of documents name: photos, a network, and the examples."""
    synthetic.photos(folder)
    (folder / "package").mkdir()
    (folder / "package/module.py").write_text(LINEAR)
    (folder / "examples").symlink_to(ROOT / "examples")


def parts(line: str) -> list[str]:
    """The commands of Lockstep in a line of shell, each with its arguments."""
    found = []
    for piece in re.split(r";|&&|\||\bdo\b|\bdone\b", line):
        piece = re.sub(
            r"[12]?>+\s*\S+|\$\w+", lambda match: "1" if match[0][0] == "$" else "", piece
        )
        if (start := re.search(r"(?:^|[\s/]|-m )lockstep(?=\s|$)(?!\.)", piece)) is not None:
            found.append(f"lockstep{piece[start.end() :]}")
    return found


def spans(text: str) -> list[str]:
    """Return the commands of Lockstep in the inline code of a text."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [
        part for span in re.findall(r"`([^`]+)`", text) for part in parts(" ".join(span.split()))
    ]


def examples_of_help() -> dict[str, list[str]]:
    """Return the examples of every `lockstep COMMAND --help`, by command, without the words beside
    them.
    """
    found, todo = {}, [("lockstep", PROGRAM)]
    while todo:
        name, command = todo.pop()
        todo += [
            (f"{name} {inner}", each) for inner, each in getattr(command, "commands", {}).items()
        ]
        _, _, text = (command.help or "").partition("Examples:\n")
        lines = [line.strip() for line in text.partition("\n\n")[0].splitlines()]
        found[name] = [re.split(r"\s{2,}", line)[0] for line in lines] + re.findall(
            r"  then: (.*)", text
        )
    return found


def calls_in_source() -> Iterator[tuple[str, str]]:
    """Yield (place, command) of each call of `command` in the source: 2 stands for what only the
    run can say.
    """
    calls = (
        (path, node)
        for path, tree in trees(SOURCE).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    )
    for path, node in calls:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name != "command":
            continue
        words = [
            each.value if isinstance(each, ast.Constant) else "2"
            for each in node.args
            if not isinstance(each, ast.Starred)
        ]
        if words and words[0] != "2" and ast.unparse(node.func) != "app.command":
            yield (
                f"{path}:{node.lineno}",
                shlex.join(["lockstep", *("2" if word == "N" else word for word in words)]),
            )


def lines_of_examples() -> Iterator[tuple[str, str]]:
    """Yield (name, command) of the indented commands in the comments and docstrings of
    examples/.
    """
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.suffix in (".py", ".sh", ".sbatch", ".toml", ".yaml"):
            for line in re.findall(
                r"^(?:#  +|    )(\S.*)$", path.read_text().replace("\\\n", " "), re.M
            ):
                if line.startswith(("lockstep ", "torchrun ", "srun ")):
                    yield path.name, re.split(r"\s{2,}", line)[0]
