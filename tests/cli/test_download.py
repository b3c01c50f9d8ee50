"""lockstep data, and downloads on first use; the addresses are servers of the test's.

At the end of this file they are those of the catalog, with their names and encryption.
"""

import hashlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
from tests.conftest import NATIVE, _outside
from tests.helpers import DATA, succeeded
from tests.serving import Server, archive, blank_mnist, certificate, packed

from lockstep.data import fetch
from lockstep.data.catalog import CATALOG, DatasetFiles
from lockstep.text import size

# The program, but for the sums of what it downloads: those of files that a test can make.
PROGRAM = """
import sys
from lockstep.data import catalog
from lockstep.data.catalog import Archive, DatasetFiles
source = eval(sys.argv.pop(1))
catalog.CATALOG[source.name] = source
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
    real = CATALOG["mnist"]
    archives = tuple(
        archive(name, body, "http://127.0.0.1:9/nowhere/") for name, body in bodies.items()
    )
    return DatasetFiles("mnist", real.files, real.subfolders, archives)


@pytest.fixture
def done(here, server, source, monkeypatch):
    """Return `here` with the test's MNIST, and with its server as the mirror."""
    monkeypatch.setitem(CATALOG, "mnist", source)
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
def test_stopped_halfway(server, source, bodies, tmp_path, command, number, done):
    name = "train-images-idx3-ubyte.gz"
    server.files[name] = server.half(bodies[name])
    environment = _outside() | {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LOCKSTEP_MIRROR": server.url,
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", PROGRAM, repr(source), *command]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, **pipes) as process:
        while not any(path.stat().st_size for path in tmp_path.rglob("*-begun")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert "Traceback" not in err
    assert [each.endswith("-begun") for each in left(tmp_path)] == [True]
    assert not (tmp_path / "runs").exists()
    if command[0] == "train":  # Its workers know the real checksum.
        return
    server.files[name] = bodies[name]
    succeeded(done("data", "fetch", "mnist"))
    assert fetch._CHUNK_BYTES in server.begins
    assert left(tmp_path) == sorted(bodies)


# ---- the names of the catalog

CIFAR10 = packed(*((f"cifar-10-batches-bin/{name}", b"x") for (name,) in CATALOG["cifar10"].files))
TORONTO, GOOGLE, AMAZON = (
    "www.cs.toronto.edu",
    "storage.googleapis.com",
    "ossci-datasets.s3.amazonaws.com",
)
FIRST = "~kriz/cifar-10-binary.tar.gz"
SECOND = "s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz"


def cut(body, at):
    """Return an answer that closes the connection after the first `at` bytes of a file."""
    return lambda handler: handler.send(body[:at], len(body))


def moved(address):
    return lambda handler: handler.send(b"see there", status=302, Location=address)


@pytest.fixture
def internet(bodies, monkeypatch, tmp_path):
    """The server that encrypts, of two behind all names; they have small files of the catalog's
    names. `asked` has the name of each connection.
    """
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate(tmp_path / "host.pem", TORONTO, GOOGLE, AMAZON)
    for source in (CATALOG["cifar10"], CATALOG["mnist"]):
        archives = tuple(
            archive(one.name, bodies.get(one.name, CIFAR10), *one.bases) for one in source.archives
        )
        monkeypatch.setitem(CATALOG, source.name, source._replace(archives=archives))
    servers = {443: Server(tmp_path / "host.pem"), 80: Server()}
    server, resolve = servers[443], socket.getaddrinfo
    server.asked, servers[80].files, servers[80].begins = [], server.files, server.begins

    def getaddrinfo(name, port, *args, **options):
        server.asked.append(name)
        return resolve("127.0.0.1", servers[port].server_port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(fetch, "_CHUNK_BYTES", 10)
    monkeypatch.setattr(fetch, "_RETRIES", 1)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    yield server
    for each in servers.values():
        each.stop()


@pytest.fixture
def online(here, tmp_path):
    """Return `here` without a proxy, where the certificate is trusted."""
    return partial(here, no_proxy="*", SSL_CERT_FILE=str(tmp_path / "host.pem"))


@pytest.mark.parametrize(
    ("files", "asked", "begins"),
    [
        ({FIRST: moved(f"https://{GOOGLE}/new"), "new": CIFAR10}, [TORONTO, GOOGLE], [0]),
        ({FIRST: b"?", SECOND: CIFAR10}, [TORONTO] * 2 + [GOOGLE], [0] * 3),
        ({FIRST: cut(CIFAR10, 50), SECOND: CIFAR10}, [TORONTO] * 2 + [GOOGLE], [0, 50, 50]),
    ],
    ids=["moved", "checksum", "cut"],
)
def test_cifar10_from_its_addresses(internet, online, tmp_path, files, asked, begins):
    internet.files |= files
    succeeded(online("data", "fetch", "cifar10"))
    assert len(left(tmp_path)) == 6
    assert (internet.asked, internet.begins) == (asked, begins)


def test_mnist_from_its_third_address_and_a_mirror(internet, online, bodies, tmp_path):
    """The mirror has no certificate, and the second address closes each connection."""
    for folder in ("cvdf-datasets/mnist", "exdb/mnist"):
        internet.files |= {f"{folder}/{name}": body for name, body in bodies.items()}
    images = "train-images-idx3-ubyte.gz"
    internet.files[f"cvdf-datasets/mnist/{images}"] = cut(bodies[images], 1000)
    succeeded(online("data", "fetch", "mnist", LOCKSTEP_MIRROR="https://mirror.example/m/"))
    tried = ["mirror.example", AMAZON, GOOGLE]
    assert list(dict.fromkeys(internet.asked)) == [*tried, "yann.lecun.com"]
    assert internet.begins == [0, 1000, 1000, 0, 0, 0]
    assert left(tmp_path) == sorted(bodies)


@pytest.mark.slow
def test_weights_that_an_address_sends_elsewhere(internet, online, here, trained_once):
    body = (trained_once(*NATIVE)[0] / "model.safetensors").read_bytes()
    url = f"https://{TORONTO}/w.safetensors#sha256={hashlib.sha256(body).hexdigest()}"
    internet.files["w.safetensors"] = moved(f"https://{GOOGLE}/key?signed=yes")
    internet.files["key?signed=yes"] = cut(body, 100)
    train = ("train", *NATIVE, "--init", url, "--name", "x")
    for program, words in (
        (partial(here, no_proxy="*"), "certificate verify failed"),
        (partial(online, SSL_CERT_FILE="nowhere"), "invalid path: nowhere"),
        (online, "-begun. What was tried: "),
    ):
        done = program(*train)
        assert (done.returncode, words in done.stderr) == (DATA, True), done.stderr
    internet.files["key?signed=yes"] = body
    succeeded(online(*train))
    assert internet.begins == [0, 100, 100]
