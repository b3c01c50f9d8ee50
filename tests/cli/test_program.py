"""The program as a newcomer meets it."""

import inspect
import os
import re
import subprocess
import sys
import time

import pytest
from benchmarks.manual import every_command
from tests.conftest import _outside
from tests.helpers import read_json, record_of, succeeded

import lockstep
from lockstep.recipes import RECIPES

DATA = [["data", *rest] for rest in ([], ["fetch"], ["check"])]
COMMANDS = [[], ["train"], ["eval"], ["recipes"], ["show"], *DATA]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_complete_and_has_examples(here, command):
    done = here(*command, "--help")
    assert done.returncode == 0
    assert "Example" in done.stdout
    assert "\b" not in done.stdout


def test_help_of_train_is_short_and_names_the_full_help(here):
    short, whole = (here("train", f"--help{rest}").stdout for rest in ("", "-all"))
    options = {
        one.name: one.opts[0]
        for one in dict(every_command())["train"].params
        if one.opts[0].startswith("-")
    }
    shown = [
        {*re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.M)} - {"--help", "--help-all"}
        for text in (short, whole)
    ]
    assert {"--towers", "--processes", "--portable"} <= shown[0]
    assert len(shown[0]) <= 12
    assert shown[1] == {*options.values()}
    assert "--help-all shows all options" in " ".join(short.split())


def imported_by(code):
    """Return the names of the modules that a program imports, by their first part and whole."""
    code += "\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*done.stderr.split()} | {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_waits_for_neither_pydantic_nor_the_code_of_commands(command):
    code = f"""
import contextlib, sys
sys.argv = ["lockstep", *{command}, "--help"]
from lockstep.__main__ import main
with contextlib.suppress(SystemExit):
    main()
"""
    slow = {"torch", "numpy", "sklearn", "PIL", "tensorboard", "pydantic", "rich", "psutil"}
    unused = {"lockstep.launch.submit", "lockstep.runs", "lockstep.jobs", "lockstep.data"}
    assert not (slow | unused) & imported_by(code)


def test_python_functions_and_recipes_wait_for_no_torch():
    code = """
import sys
import lockstep
assert "pydantic" not in sys.modules
lockstep.train, lockstep.evaluate, lockstep.load, lockstep.export, lockstep.Run
lockstep.RECIPES["digits"]()
"""
    slow = {"torch", "numpy", "sklearn", "PIL", "tensorboard", "rich", "typer"}
    assert slow & imported_by(code) == {"typer"}


def test_a_signature_is_what_the_shell_reads_of_it():
    """The program reads signatures from the source, without an import of their modules."""
    for name, function in (("eval", lockstep.evaluate), ("export", lockstep.export)):
        given = {one.name: one.default for one in dict(every_command())[name].params}
        stated = inspect.signature(function).parameters.values()
        of_shell = {"json_output", "help", "watch", "interval", "once"}
        assert {one.name for one in stated} == {*given} - of_shell
        for one in stated:
            assert given[one.name] in (one.default, None), one


def test_help_speaks_the_language_of_its_reader(here):
    text = " ".join(here("train", "--help-all").stdout.split())
    assert "Length of the run in epochs; or give --steps." in text
    assert "`" not in text.replace("`lockstep", "").replace("RECIPE`", "").replace("--all`", "")
    for function in (lockstep.train, lockstep.evaluate, lockstep.report, lockstep.export):
        text = inspect.getdoc(function)
        assert not re.search(r"--[a-z]|Prints\b", text), function
        assert ">>> " in text.partition("Examples:")[2]


def result_of(run):
    return read_json(run / "result.json")


@pytest.mark.slow
def test_train_then_eval(program, here, tmp_path):
    """What `make train` does, whole; then what its last line says to type."""
    started = time.time()
    done = program("train")
    assert (done.returncode, done.stderr) == (0, "")
    run = tmp_path / "runs/digits-1"
    log, said = (run / "log.txt").read_text().splitlines(), done.stdout.splitlines()
    line = (
        r"\d{4}-.*: step {}, loss = \d\.\d\d \(\d+\.\d examples/sec; 0\.\d{3} sec/batch\), "
        r"accuracy = \d+\.\d%, epoch = \d+\.\d, lr = \S+, ETA \d+:\d\d"
    )
    assert [
        any(re.fullmatch(line.replace("{}", step), one) for one in log) for step in ("10", "240")
    ] == [True, True]
    assert [one.split()[0] for one in said[:4]] == ["data", "network", "time", "run"]
    assert (
        len([one for one in said[4:] if ": step " in one])
        <= 2 + float(result_of(run)["train_s"]) / 10
    )
    # a slow evaluation says how far it is
    assert {one for one in said if not re.search(": step |: evaluating ", one)} <= {*log}
    result = result_of(run)
    assert result["accuracy"]["ema"] >= 0.985
    assert f"sha256    {result['weights_sha256']} " in done.stdout
    assert 0 < result["total_s"] < time.time() - started
    next_command = re.search(r"next .*?lockstep (eval \S+)", done.stdout).group(1)
    record = record_of(program(*next_command.split(), "--json", "--processes", 2))
    assert record["accuracy"] == result["accuracy"]["ema"]
    assert record["loss"] == result["loss"]["ema"]
    raw = record_of(here("eval", run, "--weights", "raw", "--split", "train", "--json"))
    assert (raw["examples"], raw["split"], raw["weights"]) == (1442, "train", "raw")
    assert "runs/digits-2" in here("train", "--steps", 1).stdout


def test_recipes_and_show_round_trip(here, tmp_path):
    listed = here("recipes").stdout
    for name in ("cifar10", "cifar10-tutorial", "mnist"):
        (tmp_path / "mine.toml").write_text(here("show", name).stdout)
        from_file, by_name = (
            record_of(here("show", what, "--json")) for what in ("mine.toml", name)
        )
        assert from_file["digest"] == by_name["digest"]
    lines = listed.splitlines()
    table = lines[: 1 + len(RECIPES)]
    assert [line.split()[0] for line in table[1:]] == [*RECIPES]
    cells = [re.split("  +", line) for line in table]
    assert {len(row) for row in cells} == {5}
    assert all(re.fullmatch(r"\d\d\.\d\d%", row[3]) for row in cells[1:])
    assert ["digits", "digits", "digits", "99.38%", "9.73 s"] in cells
    assert "measured on AMD Zen 5, 2 cores, --precision bfloat16: cifar10-tutorial, mnist" in lines
    assert max(map(len, lines[:-1])) <= 80


def test_nothing_is_said_where_the_reader_of_a_pipe_is_gone():
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "lockstep", "recipes"]
    done = subprocess.run(
        words, stdout=writing, stderr=subprocess.PIPE, env=_outside(), check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_version(here):
    assert re.fullmatch(r"lockstep \d+\.\d+\.\d+\n", here("--version").stdout)


def test_a_shell_completes_commands_and_options(monkeypatch, here):
    for words, completions in (
        ("lockstep tra", ["train"]),
        ("lockstep train --summ", ["--summary-every"]),
        ("lockstep data f", ["fetch"]),
    ):
        monkeypatch.setenv("_LOCKSTEP_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert here("").stdout.splitlines() == completions


def test_windows_is_refused_in_a_sentence(tmp_path):
    code = (
        "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; import "
        "lockstep.commands.program"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "does not run on Windows" in done.stderr
    assert "WSL 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_verbose_run_says_what_is_where(program, tmp_path):
    (tmp_path / "a b é").mkdir()
    # where processes meet
    silent = program("train", "--steps", 2, "--processes", 2, TMPDIR=str(tmp_path / "a b é"))
    assert "process 0" not in silent.stdout
    assert re.search(r"^  process 0 ", (tmp_path / "runs/digits-1/log.txt").read_text(), re.M)
    done = succeeded(program("train", "--steps", 2, "--processes", 2, "-v"))
    where = r"\S+, pid (\d+), CPU \(\d+ cores?, 1 used\)"
    places = re.findall(rf"^  process (\d) +{where}: towers (\d) to (\d)$", done.stdout, re.M)
    assert [(process, first, last) for process, _, first, last in places] == [
        ("0", "0", "1"),
        ("1", "2", "3"),
    ]
    assert places[0][1] != places[1][1]
    assert re.search(
        r"reduction +58,805 float32 values a step, 0.2 MiB; each process adds one slice",
        done.stdout,
    )
