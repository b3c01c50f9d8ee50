"""Fixtures: an HTTP server, an empty folder, and other programs that download. No test uses a network."""

import subprocess
import sys

import pytest
from tests.conftest import OFFLINE
from tests.serving import TOY, Server


@pytest.fixture(autouse=True)
def _outside(monkeypatch, tmp_path):
    """Give each test its own cache, and no network, no mirror and no data folder."""
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
def destination(tmp_path):
    """The folder of the dataset, which does not exist yet, in an empty folder."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data/toy"


PROGRAM = """
import resource, sys
from pathlib import Path
from lockstep.data.download import fetch
from lockstep.data.catalog import Archive, Source
from lockstep.errors import LockstepError
source, destination, limit = eval(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(fetch.fetch(source, destination))
except LockstepError as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)
"""


@pytest.fixture
def other():
    """Start another program that downloads: other(source, destination) -> Popen."""
    started = []

    def start(source, destination, limit=0):
        command = [sys.executable, "-c", PROGRAM, repr(source), str(destination), str(limit)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
