"""Every command that Lockstep prints can be parsed, and what can run here runs; so does all Python in documents."""

import html
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import commands, documents, synthetic
from tests.conftest import _outside, in_this_process

import lockstep
from lockstep import messages
from lockstep.commands.program import app
from lockstep.errors import LockstepError

SHELL = [(page, block) for page in documents.PAGES for block in documents.blocks(page.read_text(), page.name)]


def problem(line, check=commands.check):
    """Return what is wrong with a line of shell; None if each command of Lockstep in it can be parsed."""
    for part in documents.parts(line):
        try:
            check(part)
        except Exception as error:
            return f"{part}: {error}"
    return None


def problems(lines, check=commands.check):
    """Return what is wrong with (place, line) pairs."""
    return [f"{place}: {found}" for place, line in lines if (found := problem(line, check))]


def test_every_line_of_a_block_is_a_command_or_says_why_it_is_not_run():
    lines = {(block, line) for _, block in SHELL if block.language == "sh" for line in documents.lines(block)}
    assert len(lines) > 100
    assert {page.name for page in documents.PAGES} >= {"README.md", "usage.md", "design.md"}
    assert problems((block.page, line) for block, line in lines) == []
    unknown = [line for block, line in lines if not documents.parts(line) and documents.reason(line, block) is None]
    assert [line for line in unknown if not line.startswith("printf ")] == []


def test_every_command_in_running_text_can_be_given():
    """In inline code: of documents, notebooks, docstrings, help texts and messages."""
    found = [(place, span) for place, text in documents.texts() for span in documents.spans(text)]
    assert len(found) > 150
    assert problems(found, commands.check_mention) == []


def test_every_example_of_a_help_text_can_be_given():
    examples = documents.examples_of_help()
    assert {name for name, lines in examples.items() if not lines} == {"lockstep data list"} - {"lockstep data list"}
    assert problems((name, line) for name, lines in examples.items() for line in lines) == []


def test_every_command_in_examples_can_be_given():
    found = list(documents.lines_of_examples())
    assert {name for name, _ in found} >= {"own_model.py", "cifar10-record.toml"}
    assert problems(found) == []


def test_every_command_that_the_source_makes_can_be_given():
    """`next` and `resume` lines, the report page, errors and hints: 2 stands for what only a run can say."""
    calls = list(documents.calls_in_source())
    assert len(calls) > 12
    assert problems(calls) == []


def test_the_source_prints_commands_only_by_the_function_that_knows_how_lockstep_was_started():
    """In a string that is neither a docstring nor inline code, `lockstep train` may stand, but not its arguments."""
    bare = re.compile(r"(?:^|[^`\w])lockstep [a-z]+ (?:--|2\b|[A-Z]+\b)|(?:: |, or |[Uu]se )lockstep [a-z]+$")
    wrong = [place for place, text in documents.strings_in_source() if "\n" not in text and bare.search(text)]
    assert wrong == []
    assert bare.search("Replace it with: lockstep data fetch") is None
    assert bare.search("or download it: lockstep fetch 2")
    assert bare.search("take: lockstep recipes")


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
        "lockstep --verison",
    ],
)
def test_a_mistake_in_a_document_is_found(line):
    (block,) = documents.blocks(f"text\n```sh\n{line}   # a comment\n```\n")
    assert [problem(one) is not None for one in documents.lines(block)] == [True]


def test_a_mention_may_leave_out_values_but_not_misspell():
    assert [problem(line, commands.check_mention) for line in ("lockstep eval --watch", "lockstep bench [RECIPE]")] == [
        None, None,
    ]  # fmt: skip
    wrong = ("lockstep evla", "lockstep eval --wacth", "lockstep train ... --inlin", "lockstep train digits --twoers N")
    assert all(problem(line, commands.check_mention) for line in wrong)


def test_lines_are_read_as_a_shell_reads_them():
    first, second = documents.blocks(
        "```sh\n# only a comment\nlockstep train \\\n  --lr 1  # why\n\nlockstep show x > y.toml\n```\n"
        "<!-- not run: needs a moon -->\n```sh\nls\n```\n"
    )
    assert documents.lines(first) == ["lockstep train    --lr 1", "lockstep show x > y.toml"]
    assert [documents.words_of(part) for part in documents.parts("lockstep show x > y.toml; lockstep train")] == [
        ["show", "x"], ["train"],
    ]  # fmt: skip
    assert (documents.reason("ls", first), documents.reason("ls", second)) == (None, "needs a moon")


def test_every_reason_is_still_needed():
    lines = [line for _, block in SHELL for line in documents.lines(block)]
    lines += [line for each in documents.examples_of_help().values() for line in each]
    assert [start for start in documents.NOT_RUN if not any(line.startswith(start) for line in lines)] == []


@pytest.mark.parametrize(
    ("started", "on_path", "program"),
    [
        ("bin/lockstep", None, "bin/lockstep"),
        ("bin/lockstep", "bin", "lockstep"),
        ("bin/lockstep", "other", "bin/lockstep"),
        ("a folder/lockstep", None, "'a folder/lockstep'"),
        ("src/lockstep/__main__.py", None, "python -m lockstep"),
        ("script.py", None, "venv/bin/lockstep"),
        ("script.py", "venv/bin", "lockstep"),
        ("", None, "venv/bin/lockstep"),
    ],
)
def test_commands_name_the_program_as_the_user_started_it(tmp_path, monkeypatch, started, on_path, program):
    monkeypatch.chdir(tmp_path)
    for folder in ("bin", "other", "a folder", "venv/bin"):
        Path(folder).mkdir(parents=True)
        Path(folder, "lockstep").touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [started])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "lockstep"])
    monkeypatch.setattr(sys, "executable", "venv/bin/python")
    monkeypatch.setenv("PATH", on_path or "")
    assert messages.command("eval", "runs/a b") == f"{program} eval 'runs/a b'"
    text = "Usage: lockstep [OPTIONS]\n  lockstep train\n`lockstep show` of lockstep, lockstep: no"
    expected = f"Usage: {program} [OPTIONS]\n  {program} train\n`{program} show` of lockstep, lockstep: no"
    assert messages.with_program(text) == expected
    monkeypatch.setenv(messages.PROGRAM, "x/lockstep")  # a worker's
    assert messages.command("runs") == "x/lockstep runs"


@pytest.mark.slow
def test_the_next_line_works_as_printed_where_the_shell_does_not_find_lockstep(tmp_path):
    """As after `make train`, whose program is .venv/bin/lockstep."""
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    environment = {**_outside(), "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def shell(line):
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = shell(".venv/bin/lockstep train --steps 4 --processes 1")
    following = re.search(r"^ +next +(.*)$", out, re.M)[1].split("   or   ")
    assert following == [".venv/bin/lockstep eval runs/digits-1", ".venv/bin/lockstep recipes"]
    assert [bool(shell(line)) for line in following] == [True, True]
    viewer = re.search(r"or (\S*tensorboard) --logdir runs/digits-1", out)[1]
    assert shell(f"test -x {viewer} && echo yes") == "yes\n"


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
    command = ["bash", "-e", "-o", "pipefail", "-c", line]
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
                run_line(line, place, capsys, block)


@pytest.mark.slow
def test_the_examples_of_help_texts_run(place, trained_once, capsys):
    """Each, where the runs and pictures that it names are small ones, but for those that usage.md runs at length."""
    small, _ = trained_once("digits", "--steps", 4, "--processes", 1)
    for name in ("digits-1", "digits-2", "big", "first", "second", "other"):
        shutil.copytree(small, place / "runs" / name)
    shutil.copytree(small, place / "downloaded/run")
    shutil.copy(small / "model.safetensors", place)
    shutil.copytree(place / "more", place / "holiday")
    shutil.copytree(place / "more", place / "new")
    shutil.copy(place / "more/0.png", place / "new.png")
    shutil.copy(place / "new.jpg", place / "cat.jpg")
    shutil.copy(place / "new.jpg", place / "a.png")
    (place / "experiments").mkdir()
    run_here(["train", "photos/", "--name", "photos"], capsys)
    for line in (line for lines in documents.examples_of_help().values() for line in lines):
        if not re.search(r"lockstep (doctor|bench)|--(labels|folds|seeds)", line):
            for part in line.split("; "):
                run_line(part, place, capsys)


@pytest.mark.slow
def test_the_commands_of_examples_run_in_their_folder(place, monkeypatch, capsys):
    shutil.copytree(documents.ROOT / "examples", place / "examples")
    monkeypatch.chdir(place / "examples")
    monkeypatch.syspath_prepend(str(place / "examples"))
    for name, line in documents.lines_of_examples():
        if name == "own_model.py":  # The others need several hosts.
            run_line(line, place / "examples", capsys)


@pytest.mark.parametrize("what", ["digits", pytest.param("photos/", marks=pytest.mark.slow)])
def test_the_commands_of_a_report_page_work_as_printed(place, capsys, what):
    run_here(["train", what, "--name", "a"], capsys)
    run_here(["report", "runs/a", "-o", "a.html"], capsys)
    (code,) = re.findall(r"<pre[^>]*><code>(.*?)</code>", (place / "a.html").read_text(), re.S)
    again, verify = html.unescape(code).strip().splitlines()
    for line in (again, verify):
        words = shlex.split(line)
        assert words[0] == "lockstep"
        done = in_this_process(*words[1:], cwd=place)
        assert done.returncode == 0, done.stderr
    assert lockstep.Run.open("runs/a").result()["weights_sha256"] in (place / "runs/a-again/result.json").read_text()


def run_line(line, folder, capsys, block=None):
    if documents.reason(line, block) is not None:
        return
    if [line] == documents.parts(line):
        run_here(documents.words_of(line), capsys)
    else:
        assert run_in_shell(line, folder) or ">" in line or "-q" in line


def test_a_command_that_fails_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pytest.fail.Exception, match="runs/nothing"):
        run_line("lockstep eval runs/nothing", tmp_path, capsys)
    with pytest.raises(AssertionError, match="runs/nothing"):
        run_line("lockstep eval runs/nothing > out.txt", tmp_path, capsys)
