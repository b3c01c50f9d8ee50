"""A server, an empty folder, and other programs that fetch; no network, no mirror and no cache but the test's own."""

import subprocess
import sys

import pytest
from tests.conftest import OFFLINE
from tests.serving import TOY, Server


@pytest.fixture(autouse=True)
def _outside(monkeypatch, tmp_path):
    """No network, no mirror and a cache of the test's own."""
    for name, value in {**OFFLINE, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    server = Server()
    server.files["toy.tar.gz"] = TOY
    yield server
    server.stop()


@pytest.fixture
def place(tmp_path):
    """Where the data set goes: a folder in an empty one."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data/toy"


PROGRAM = """
import resource, sys
from pathlib import Path
from lockstep.data.download import fetch
from lockstep.data.catalog import Archive, Source
from lockstep.errors import LockstepError
source, place, limit = eval(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(fetch.fetch(source, place))
except LockstepError as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)
"""


@pytest.fixture
def other():
    """Another program that fetches: other(source, place) -> Popen."""
    started = []

    def start(source, place, limit=0):
        command = [sys.executable, "-c", PROGRAM, repr(source), str(place), str(limit)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
