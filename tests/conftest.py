"""Fixtures: the real program as a subprocess, real and generated datasets, and unseeded global
random generators.
"""

import contextlib
import fcntl
import hashlib
import importlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from unittest import mock

import pytest

from lockstep import errors, numerics
from lockstep.errors import STOP_SIGNALS

# before torch is imported: tests that compare bits in this process compute as the program does
numerics.prepare(1)

import numpy as np  # noqa: E402

from tests import synthetic  # noqa: E402
from tests.disturbed import STEPS  # noqa: E402

# A background job of a shell ignores SIGINT, and so would every program that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shell finds the program of the environment that runs the tests, so messages name it as
# `lockstep`.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# Every request to another machine fails at once, because no proxy listens at this port.
OFFLINE = dict.fromkeys(
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
)
OFFLINE |= {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}

# To list the fonts of a machine takes matplotlib a second, so all tests share one list.
os.environ.setdefault("MPLCONFIGDIR", os.path.expanduser("~/.cache/matplotlib"))

# Runs of `trained_once` that most tests share, in portable arithmetic and in native, which takes a
# tenth of the time.
SHORT = ("--steps", 12, "--save-every", 4, "--processes", 1)
SMALL = ("--no-portable", "--towers", 2, "--batch", 48)
NATIVE = ("digits", *SMALL, "--steps", 30, "--save-every", 10, "--save-every-s", 0)
NATIVE += ("--processes", 1)

NUMBERS = itertools.count()


def pytest_sessionstart(session):
    """Configure torch where tests run. The process that only hands them out need not import it."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", 0):
        numerics.configure(1, exact=True)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_modules(tmp_path_factory):
    """Give the fixtures of modules a cache that no earlier code has filled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def _own_cache(request, tmp_path_factory, monkeypatch):
    """Give every test a cache of its own, in its folder. To make a folder takes milliseconds, so a
    test that asks for none gets a path where nothing is.
    """
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    else:
        folder = tmp_path_factory.getbasetemp() / f"without-folder-{next(NUMBERS)}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.fixture(autouse=True)
def _reader():
    """Let messages name options as a shell takes them. The tests in api/ read them as Python
    programs do.
    """
    with mock.patch.object(errors, "in_python", False):
        yield


@pytest.fixture(autouse=True)
def _poisoned_random_generators():
    """Seed the global generators differently in every run, so exact comparisons fail for code that
    draws from them.
    """
    import torch

    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed formats a stack for each backend that is not there: 5 ms.
    torch.default_generator.manual_seed(seed)


@pytest.fixture(scope="session")
def synthetic_data(tmp_path_factory) -> Iterator[Callable[[str], Path]]:
    """Return synthetic_data(name) -> the folder of a dataset in its official format, made by
    tests/synthetic.py.
    """
    folder = tmp_path_factory.mktemp("synthetic")

    @cache
    def written(name: str) -> Path:
        (folder / name).mkdir()
        synthetic.WRITERS[name](folder / name)
        return folder / name

    yield written
    shutil.rmtree(folder)  # up to 400 MB, which pytest would keep for three sessions


def _outside() -> dict[str, str]:
    """Return the variables of a user's shell: no number of threads, no data folder, no GPU and no
    network.

    Its programs keep the bytecode of Lockstep, which takes them a second to make.
    """
    removed = {
        *numerics.environment(1),
        "LOCKSTEP_DATA",
        "LOCKSTEP_MIRROR",
        "PYTHONDONTWRITEBYTECODE",
    }
    return {
        **{k: v for k, v in os.environ.items() if k not in removed},
        **OFFLINE,
        "CUDA_VISIBLE_DEVICES": "",
    }


def popen(*command: object, cwd: Path, **environment: str) -> subprocess.Popen:
    """Start Python with the arguments `command`, as from a user's shell. Its output is read as
    text.
    """
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**_outside(), "XDG_CACHE_HOME": str(cwd / "cache"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(*args: object, cwd: Path, **environment: str) -> subprocess.Popen:
    """Start the real program."""
    return popen("-m", "lockstep", *args, cwd=cwd, **environment)


def run_program(*args: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run the real program and wait for it."""
    process = start(*args, cwd=cwd, **environment)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def finished(process: subprocess.Popen) -> str:
    """What a program printed. It must end well."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def program(tmp_path):
    """Return program(*args) -> CompletedProcess: it runs the real program in the test's folder and
    waits.
    """
    return partial(run_program, cwd=tmp_path)


INLINE = ("train", "eval", "verify", "report")  # commands whose jobs this process computes


def inline(submit: Callable) -> Callable:
    """Return `submit` with `inline`, whatever it is called with."""
    return lambda *args, **options: submit(*args, **(options | {"inline": True}))


def _is_alone(words: list[str]) -> bool:
    """Return whether a command asks for one process, or leaves the number to the program."""
    return "--processes" not in words or words[words.index("--processes") + 1] == "1"


def in_this_process(*args: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run the command line's main() in `cwd`, in this process, which has torch already, and undo
    what it changed.
    """
    from lockstep.commands import shell
    from lockstep.commands.program import main

    words = [*map(str, args)]
    variables = {
        **OFFLINE,
        "CUDA_VISIBLE_DEVICES": "",
        "XDG_CACHE_HOME": str(cwd / "cache"),
        **environment,
    }
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    logger = logging.getLogger("lockstep")
    level, log_handlers = logger.level, [*logger.handlers]
    with contextlib.ExitStack() as stack:
        # This process computes, as with `train --inline`.
        if words[0] in INLINE and _is_alone(words):
            stack.enter_context(mock.patch.object(shell, "submit", inline(shell.submit)))
        out, err = (
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2)
        )
        for change in (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(cwd),
            mock.patch.dict(os.environ),
            mock.patch.multiple(sys, argv=["lockstep", *words], path=[*sys.path]),
            # of a model that the test writes again at once
            mock.patch.object(sys, "dont_write_bytecode", True),
            mock.patch.object(errors, "in_python", False),
        ):
            stack.enter_context(change)
        for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR"):
            os.environ.pop(name, None)
        os.environ.update(variables)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            numerics.configure(1, exact=True)
            logger.handlers[:] = log_handlers
            logger.setLevel(level)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name, module in [*sys.modules.items()]:
                if (getattr(module, "__file__", None) or "").startswith(f"{cwd}{os.sep}"):
                    del sys.modules[name]
            importlib.invalidate_caches()
        printed = [stream.seek(0) or stream.read() for stream in (out, err)]
        return subprocess.CompletedProcess(args, ended.value.code or 0, *printed)


@pytest.fixture
def here(tmp_path):
    """Return here(*args) -> CompletedProcess: as `program`, in this process. Without the output of
    its workers.
    """
    return partial(in_this_process, cwd=tmp_path)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """made_once(key, make) -> a folder that make(folder) has filled, once for all tests and test
    processes.

    Tests read the folder. One that changes a file copies it first.
    """
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent  # the one that all test processes share

    def made(key: object, make: Callable[[Path], object]) -> Path:
        folder = common / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
        done = folder.with_suffix(".done")
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that failed
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def trained_once(made_once):
    """trained_once(*options) -> (folder of the run, record) of `lockstep train`, run once for all
    tests.

    A run of one process is computed in this one.
    """

    @cache
    def run(*options: object) -> tuple[Path, dict]:
        words = [*map(str, options)]

        def train(folder: Path) -> None:
            run_it = in_this_process if _is_alone(words) else run_program
            done = run_it("train", *words, "--name", "a", "--json", cwd=folder)
            assert done.returncode == 0, done.stderr
            (folder / "record.json").write_text(done.stdout.splitlines()[-1])

        folder = made_once(words, train)
        return folder / "runs/a", json.loads((folder / "record.json").read_text())

    return run


@pytest.fixture
def alone(trained_once):
    """The sha256 of the run of `SHORT`, on one process."""
    return trained_once(*SHORT)[1]["weights_sha256"]


@pytest.fixture
def undisturbed(trained_once):
    """The sha256 of the run that tests of faults disturb."""
    return trained_once("--steps", STEPS, "--processes", 1)[1]["weights_sha256"]


@pytest.fixture
def started(tmp_path):
    """Return started(*args) -> Popen: it starts the real program, which is killed when the test
    ends.
    """
    processes = []

    def run(*args: object, **environment: str) -> subprocess.Popen:
        processes.append(start(*args, cwd=tmp_path, **environment))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()
