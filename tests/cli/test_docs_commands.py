"""Every command of README, CONTRIBUTING and docs can be parsed, every Python block runs; slowly, all of each page."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_every_command_is_one_the_program_takes():
    assert len(LINES) > 30
    assert {page.name for page in documents.PAGES} >= {"README.md", "usage.md", "design.md"}
    assert [wrong for line in LINES if (wrong := problem(line)) is not None] == []


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


def test_what_is_not_run_is_still_named_somewhere():
    text = "".join(page.read_text() for page in documents.PAGES)
    assert [start for start in documents.NOT_RUN if start not in text] in (
        [],
        ["python -m benchmarks."],
        ["git clone "],
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder: with photos, the module of MODEL, no other data, and nothing left of it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    modules = set(sys.modules)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text(documents.MODEL)
    synthetic.photos(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def execute(block, names):
    """Run a Python block in this process, and keep it as a file if it names one."""
    if named := re.match(r"# (\w+\.py)\n", block.text):
        Path(named[1]).write_text(block.text)
    exec(compile(block.text, block.page, "exec"), names)


PYTHON = sorted({block.page for _, block in SHELL if block.language == "python"})


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page == "README.md" else pytest.mark.slow) for page in PYTHON]
)
def test_the_python_of_a_page_runs(page, place, monkeypatch, trained_once):
    """In this process, where one small run stands for every run that the page trains or opens."""
    small, _ = trained_once("digits", "--steps", 4, "--processes", 1)
    arguments = inspect.signature(lockstep.train)

    def train(what="digits", name="unnamed", **options):
        arguments.bind(what, name=name, **options)
        if isinstance(what, lockstep.Run):
            return what
        return lockstep.Run.open(shutil.copytree(small, place / f"runs/{name}"))

    monkeypatch.setattr(lockstep, "train", train)
    names = {"__name__": "__main__"}
    for block in (block for _, block in SHELL if (block.page, block.language) == (page, "python")):
        for opened in re.findall(r'open\("runs/(\w+)"\)', block.text):
            train(name=opened)
        execute(block, names)


def run_in_shell(line, folder):
    """Run a line that needs a shell, with a `lockstep` that shortens its arguments."""
    programs = folder / "programs"
    if not programs.is_dir():
        programs.mkdir()
        code = f"#!{sys.executable}\nimport os, sys\nfrom tests.documents import shortened\n"
        code += f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'lockstep', *shortened(sys.argv[1:])])\n"
        (programs / "lockstep").write_text(code)
        (programs / "lockstep").chmod(0o755)
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


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in documents.PAGES if "```" in page.read_text()], ids=lambda p: p.name)
def test_the_page_works_from_top_to_bottom(page, place, monkeypatch, capsys):
    """Its commands in their order, in one folder, and its Python blocks where they are."""
    monkeypatch.setattr(lockstep, "train", documents.shortened_train(lockstep.train))
    names = {"__name__": "__main__"}
    for block in documents.blocks(page.read_text(), page.name):
        if block.language == "python":
            execute(block, names)
        elif block.language == "sh":
            for line in documents.lines(block):
                run_line(line, place, capsys)


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
