"""Every command that Lockstep prints can be parsed, and all Python in documents runs."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.manual import SECTIONS, every_command
from safetensors.torch import load_file
from tests import commands, documents
from tests.conftest import NATIVE, in_this_process, inline

import lockstep
from lockstep import messages
from lockstep.commands import shell
from lockstep.config.recipe import Recipe

SHELL = [
    (page, block)
    for page in documents.PAGES
    for block in documents.blocks(page.read_text(), page.name)
]


PAGES = {
    page.name: page.read_text() for page in (*documents.PAGES, documents.ROOT / "CHANGELOG.md")
}
# Where commands are printed -> what returns the (place, command) pairs.
PRINTED = {
    "blocks": lambda: [
        (b.page, line) for _, b in SHELL if b.language == "sh" for line in documents.lines(b)
    ],
    "help texts": lambda: [
        (name, line) for name, lines in documents.examples_of_help().items() for line in lines
    ],
    "examples": lambda: [*documents.lines_of_examples()],
    "source": lambda: [*documents.calls_in_source()],
    "inline code": lambda: [
        (name, span) for name, text in PAGES.items() for span in documents.spans(text)
    ],
}


def problem(line, check=commands.check):
    """Return what is wrong with a line of shell; None if each command of Lockstep in it can be
    parsed.
    """
    for part in documents.parts(line):
        try:
            check(part)
        except Exception as error:
            return f"{part}: {error}"
    return None


@pytest.mark.parametrize("where", PRINTED)
def test_every_command_can_be_given(where):
    printed = PRINTED[where]()
    assert printed
    check = commands.check_mention if where == "inline code" else commands.check
    assert [f"{place}: {found}" for place, line in printed if (found := problem(line, check))] == []


def test_every_command_and_every_setting_is_in_the_reference():
    page = PAGES["settings.md"]
    settings, commands_ = page.split("\n## Commands and options\n")
    assert re.findall(r"^### (.+)$", commands_, re.M) == [words for words, _ in every_command()]
    assert re.findall(r"^### (.+)$", settings, re.M) == [*SECTIONS.values()]
    assert re.findall(r"^\| `(\w+)`", settings, re.M) == [*Recipe.model_fields]


@pytest.mark.parametrize(
    ("on_path", "here", "program"),
    [
        ("my env/bin", ".", "lockstep"),
        ("other", ".", "'my env/bin/lockstep'"),
        ("", "other", "'../my env/bin/lockstep'"),
        ("", "my env/bin", "'{}/my env/bin/lockstep'"),
    ],
)
def test_commands_work_in_the_users_shell(tmp_path, monkeypatch, on_path, here, program):
    monkeypatch.chdir(tmp_path)
    for folder in ("other", "my env/bin"):
        Path(folder).mkdir(parents=True)
        Path(folder, "lockstep").touch(mode=0o755)
    python = tmp_path / "my env/bin/python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path / on_path))
    monkeypatch.chdir(here)
    assert messages.command("eval", "a b") == f"{program.format(tmp_path)} eval 'a b'"
    python.with_name("lockstep").unlink()
    assert messages.program() == f"'{python}' -m lockstep"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder: with photos, no other data, and nothing left of it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    modules = set(sys.modules)
    documents.furnish(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        # An export takes ten seconds.
        pytest.param(page, marks=[pytest.mark.slow] * (page == "deploy.md"))
        for page in sorted({block.page for _, block in SHELL if block.language == "python"})
    ],
)
def test_the_python_of_a_page_runs(page, place, monkeypatch, trained_once):
    """In this process, where one small run stands for every run that the page trains or opens."""
    small, _ = trained_once(*NATIVE)
    arguments = inspect.signature(lockstep.train)

    def train(what="digits", name="unnamed", **options):
        arguments.bind(what, name=name, **options)
        if isinstance(what, lockstep.Run):
            return what
        return lockstep.Run.open(shutil.copytree(small, place / f"runs/{name}"))

    monkeypatch.setattr(lockstep, "train", train)
    monkeypatch.setattr(shell, "submit", inline(shell.submit))
    names = {"__name__": "__main__"}
    for block in (block for _, block in SHELL if (block.page, block.language) == (page, "python")):
        for opened in re.findall(r'(?:open|load)\("runs/(\w+)"\)', block.text):
            train(name=opened)
        if named := re.match(r"# (\w+\.py)\n", block.text):
            Path(named[1]).write_text(block.text)
        exec(compile(block.text, page, "exec"), names)


def shortened(line):
    """Return a line whose new runs take few steps."""
    if "lockstep train" not in line or "train runs/" in line:
        return line
    return re.sub(r" --(steps|epochs) \S+", "", line).replace(
        "lockstep train", "lockstep train --steps 4"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["README.md", "usage.md", "own-images.md", "portable.md", "deploy.md", "from-nothing.md"],
)
def test_a_page_works_from_top_to_bottom(page, place, synthetic_data):
    data = str(synthetic_data("cifar10"))
    for block in (block for _, block in SHELL if block.page == page):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            Path(named[1]).write_text(block.text)
        for line in map(shortened, documents.runnable(block)):
            if "weights.pt" in line:  # what another program may have saved
                torch.save(load_file("runs/own/model.safetensors"), "weights.pt")
            if documents.parts(line) == [line]:
                done = in_this_process(*shlex.split(line)[1:], cwd=place, LOCKSTEP_DATA=data)
            else:
                done = subprocess.run(
                    ["bash", "-ec", line], capture_output=True, text=True, check=False
                )
            assert done.returncode == 0, f"{line}: {done.stderr}"
