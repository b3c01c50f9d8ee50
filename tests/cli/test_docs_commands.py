"""Every command and Python block of README, CONTRIBUTING and docs works: parsed as it stands, run in a short form."""

import re
import subprocess
import sys

import pytest
from tests import commands, documents, synthetic
from tests.conftest import _outside

import lockstep
from lockstep.cli import app
from lockstep.errors import LockstepError

SHELL = [(page, block) for page in documents.PAGES for block in documents.blocks(page.read_text(), page.name)]
LINES = sorted({line for _, block in SHELL if block.language == "sh" for line in documents.lines(block)})


def problem(line: str) -> str | None:
    """What is wrong with a line of a document: nothing if each command of Lockstep in it can be parsed."""
    parts = documents.parts(line)
    if not parts and documents.reason(line) is None and not line.startswith("printf "):
        return f"neither parsed nor in NOT_RUN: {line}"
    for part in parts:
        if "--num_gpus" in part or part == "lockstep --install-completion":  # typer's own, which has no parameter
            continue
        try:
            commands.check(part)
        except Exception as error:
            return f"{part}: {error}"
    return None


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_one_the_program_takes(line):
    assert problem(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "lockstep train --twoers 2",
        "lockstep trian",
        "lockstep train digits --steps many",
        "lockstep train digits --reduction trees",
        "lockstep train digits --set optimizer.momentun=0.9",
        "lockstep train digits --precision float17",
        "lockstep train photos/ --set image_px=31",
        "lockstep eval",
        "lockstep eval runs/x --wacth",
        "lockstep data fetsh cifar10",
        "for n in 1 2; do lockstep train --procesess $n; done",
        "torchrun --nnodes 2 -m lockstep train digits --tower 2",
        "lockstep train -q && lockstep shwo digits",
        "RANK=0 lockstep train --toers 2",
        "rm -rf runs",
    ],
)
def test_a_mistake_in_a_document_is_found(line):
    (block,) = documents.blocks(f"text\n```sh\n{line}   # a comment\n```\n")
    assert [problem(one) is not None for one in documents.lines(block)] == [True]


def test_lines_are_read_as_a_shell_reads_them():
    (block,) = documents.blocks(
        "```sh\n# only a comment\nlockstep train \\\n  --lr 1  # why\n\nlockstep show x > y.toml\n```\n"
    )
    assert documents.lines(block) == ["lockstep train    --lr 1", "lockstep show x > y.toml"]
    assert [documents.words_of(part) for part in documents.parts("lockstep show x > y.toml; lockstep train")] == [
        ["show", "x"], ["train"],
    ]  # fmt: skip


def test_there_are_commands_and_every_page_is_read():
    assert len(LINES) > 30
    assert {page.name for page in documents.PAGES} >= {"README.md", "usage.md", "design.md"}


@pytest.mark.parametrize("start", documents.NOT_RUN)
def test_what_is_not_run_is_still_named_somewhere(start):
    text = "".join(page.read_text() for page in documents.PAGES)
    assert start in ("git clone ", "python -m benchmarks.") or start in text


def stand_in(folder, name, code):
    """A program of this `name` for a shell, written to `folder`."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)


def run_in_shell(line, folder):
    """Run a line that needs a shell, with a `lockstep` that shortens its arguments."""
    programs = folder / "programs"
    if not programs.is_dir():
        programs.mkdir()
        code = "import os, sys\nfrom tests.documents import shortened\n"
        code += f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'lockstep', *shortened(sys.argv[1:])])\n"
        stand_in(programs, "lockstep", code)
    environment = _outside()
    path = f"{programs}:{environment['PATH']}"
    places = {"PATH": path, "PYTHONPATH": f"{documents.ROOT}:{environment.get('PYTHONPATH', '')}"}
    command = ["bash", "-e", "-o", "pipefail", "-c", line.replace(".venv/bin/lockstep", "lockstep")]
    done = subprocess.run(
        command, cwd=folder, env={**environment, **places}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}: {done.stderr}{done.stdout}"
    return done.stdout


def run_here(words, capsys):
    """Run one command of Lockstep in this process, which has torch already."""
    try:
        app(documents.shortened(words), prog_name="lockstep", standalone_mode=False)
    except LockstepError as error:
        pytest.fail(f"lockstep {' '.join(words)}: {error}")
    return capsys.readouterr().out


# README starts the program anew for each of 1 to 4 processes.
WITH_BLOCKS = [
    pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name == "README.md" else [])
    for page in documents.PAGES
    if "```" in page.read_text()
]


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_the_page_works_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    """Its commands in their order, in one folder; Python blocks where they stand, as a file if they name one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    modules = set(sys.modules)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text(documents.MODEL)
    synthetic.photos(tmp_path)
    monkeypatch.setattr(lockstep, "train", documents.shortened_train(lockstep.train))
    names = {"__name__": "__main__"}
    for block in documents.blocks(page.read_text(), page.name):
        if block.language == "python":
            if named := re.match(r"# (\w+\.py)\n", block.text):
                (tmp_path / named[1]).write_text(block.text)
            exec(compile(block.text, f"{page.name}", "exec"), names)
        elif block.language == "sh":
            for line in documents.lines(block):
                run_line(line, tmp_path, capsys)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run_line(line, folder, capsys):
    if documents.reason(line) is not None:
        return
    parts = documents.parts(line)
    if [line.replace(".venv/bin/", "")] == parts:
        run_here(documents.words_of(line), capsys)
    else:
        assert run_in_shell(line, folder) or ">" in line or "-q" in line


def test_a_command_that_fails_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pytest.fail.Exception, match="runs/nothing"):
        run_line("lockstep eval runs/nothing", tmp_path, capsys)
    with pytest.raises(AssertionError, match="runs/nothing"):
        run_line("lockstep eval runs/nothing > out.txt", tmp_path, capsys)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("train", "train digits --steps 4 --processes 1"),
        ("train mnist --epochs 3 --name mnist", "train digits --name mnist --steps 4 --processes 1"),
        ("train -q --name a", "train digits -q --name a --steps 4 --processes 1"),
        ("train runs/a --resume", "train runs/a --resume"),
        ("train digits --profile steps=10:13", "train digits --profile steps=1:3 --steps 4 --processes 1"),
        ("train photos/ --lr 3 --name a", "train photos/ --name a --steps 4 --processes 1 --batch 8 --set image_px=32"),
        ("data check cifar10", "data check digits"),
        ("data check photos/", "data check photos/"),
        ("eval runs/a --device cuda:0 --once", "eval runs/a --once --processes 1"),
        ("bench mnist --link 2", "bench digits --link 2 --steps 2 --warmup 0 --processes 1 --synthetic"),
    ],
)  # fmt: skip
def test_a_command_is_shortened(given, wanted):
    assert documents.shortened(given.split()) == wanted.split()
