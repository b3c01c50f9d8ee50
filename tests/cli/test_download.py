"""lockstep data, and downloads on first use; the addresses are a server of the test's."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest
from tests.conftest import _outside
from tests.helpers import DATA, succeeded
from tests.serving import Server, archive, blank_mnist

from lockstep.data.catalog import SOURCES, Source
from lockstep.text import size

# The program, but for the sums of what it downloads: those of files that a test can make.
PROGRAM = """
import sys
from lockstep.data import catalog
from lockstep.data.catalog import Archive, Source
source = eval(sys.argv.pop(1))
catalog.SOURCES[source.name] = source
from lockstep.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def bodies():
    return blank_mnist()


@pytest.fixture
def server(bodies):
    server = Server()
    server.files |= bodies
    yield server
    server.stop()


@pytest.fixture
def source(bodies):
    """The test's MNIST in place of the real one, at an address where no server listens."""
    real = SOURCES["mnist"]
    archives = tuple(
        archive(name, body, "http://127.0.0.1:9/nowhere/") for name, body in bodies.items()
    )
    return Source("mnist", real.files, real.subfolders, archives)


@pytest.fixture
def done(here, server, source, monkeypatch):
    """Return `here` with the test's MNIST, and with its server as the mirror."""
    monkeypatch.setitem(SOURCES, "mnist", source)
    monkeypatch.setattr("lockstep.data.fetch._RETRIES", 0)
    return partial(here, LOCKSTEP_MIRROR=server.url)


def left(tmp_path):
    """All files under the cache."""
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


@pytest.mark.slow
def test_training_downloads_on_first_use(done, server, tmp_path, bodies):
    (tmp_path / "small.py").write_text(
        "from torch import nn\n"
        "def function(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], "
        "classes))\n"
    )
    options = (
        "--model",
        "small:function",
        "--set",
        "weight_decay={}",
        "--steps",
        1,
        "--batch",
        8,
        "--towers",
        1,
    )
    first = succeeded(done("train", "mnist", *options, "--json", "--name", "small", "--inline"))
    assert json.loads(first.stdout)["steps"] == 1
    fetching = (
        f"fetching train-images-idx3-ubyte.gz "
        f"({size(len(bodies['train-images-idx3-ubyte.gz']))}) from"
    )
    assert fetching in first.stderr
    assert sorted(server.requests) == sorted(bodies)
    assert left(tmp_path) == sorted(bodies)
    second = done("eval", "runs/small", "--trust-code")
    assert (second.returncode, second.stderr) == (0, "")
    assert len(server.requests) == 4


def test_fetch_and_use_what_is_there(done, server, tmp_path):
    missing = done("train", "mnist", "--data", tmp_path)
    assert missing.returncode == DATA
    assert "lockstep data fetch mnist" in missing.stderr
    fetched = done("data", "fetch", "mnist", "--data", "here", "--json")
    place = tmp_path / "here/mnist"
    assert json.loads(fetched.stdout) == {
        "dataset": "mnist",
        "folder": str(place),
        "downloaded": True,
    }
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mnist"]
    done = partial(done, LOCKSTEP_DATA=str(tmp_path / "here"))
    assert done("data", "fetch", "mnist").stdout == f"mnist is already in {place}\n"
    assert len(server.requests) == 4
    with (place / "t10k-labels-idx1-ubyte.gz").open("ab") as file:
        file.write(b"?")
    damaged = done("train", "mnist", "--data", "here", "--processes", 1)
    assert damaged.returncode == DATA
    assert "t10k-labels-idx1-ubyte.gz: not a complete gzip file" in damaged.stderr


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (("data", "fetch", "mnist"), signal.SIGINT),
        pytest.param(("train", "mnist"), signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_stopped_halfway(server, source, bodies, tmp_path, command, number):
    name = "train-images-idx3-ubyte.gz"
    server.files[name] = server.half(bodies[name])
    environment = _outside() | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LOCKSTEP_MIRROR": server.url,
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", PROGRAM, repr(source), *command]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, **pipes) as process:
        assert server.halfway.wait(60)
        assert left(tmp_path) != []
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert "Traceback" not in err
    assert left(tmp_path) == []
    assert not (tmp_path / "runs").exists()
