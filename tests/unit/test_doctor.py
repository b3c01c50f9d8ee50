"""lockstep doctor: every check passes here, and finds what is wrong in values that are given to it."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.core.digest import digest
from lockstep.core.group import Alone
from lockstep.core.reduction import Reduction
from lockstep.data.catalog import SOURCES
from lockstep.data.download import manifest
from lockstep.data.images import mapped
from lockstep.doctor import exactness, machine, storage
from lockstep.doctor.peer import TOWERS, vectors

LO, ETH = {"lo": ["127.0.0.1", "::1"]}, {"eth0": ["10.0.0.1"]}


def is_sound(finding):
    """Only a finding other than PASS has a remedy."""
    assert bool(finding.remedy) == (finding.status != "PASS")
    return finding.status


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.13.0+cpu", "PASS"), ("2.13.1", "PASS"), ("2.14.0", "WARN"), ("2.12.9", "FAIL"), ("1.99", "FAIL")],
)
def test_torch(version, status):
    assert is_sound(machine.torch_build(version, "torch>=2.13")) == status


def test_devices():
    assert is_sound(machine.devices("Xeon", 2, [], driver=False)) == "PASS"
    assert is_sound(machine.devices("Xeon", 2, [], driver=True)) == "WARN"
    found = machine.devices("Xeon", 2, ["H100", "H100"], driver=True)
    assert (is_sound(found), found.text) == ("PASS", "2 GPUs: H100, H100")


def test_threads():
    assert is_sound(machine.threads({}, 1)) == "PASS"
    assert is_sound(machine.threads({}, 2)) == "FAIL"
    replaced = machine.threads({"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1"}, 1)
    assert is_sound(replaced) == "PASS"
    assert "OMP_NUM_THREADS=8 of this shell is replaced" in replaced.text
    found = machine.threads({"ONEDNN_MAX_CPU_ISA": "AVX2", "PATH": "/bin"}, 1)
    assert is_sound(found) == "WARN"
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in found.text


def test_cpu_quota():
    assert is_sound(machine.cpu_quota(2, 2, math.inf)) == "PASS"
    assert is_sound(machine.cpu_quota(4, 64, 4.5)) == "PASS"
    assert is_sound(machine.cpu_quota(1, 64, 0.5)) == "WARN"


def test_shared_memory(tmp_path, monkeypatch):
    assert is_sound(machine.shared_memory(tmp_path / "none", gpus=1)) == "PASS"
    assert is_sound(machine.shared_memory(tmp_path / "none", gpus=2)) == "WARN"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: _Usage(64 << 20))
    assert is_sound(machine.shared_memory(tmp_path, gpus=2)) == "WARN"
    monkeypatch.setattr("shutil.disk_usage", lambda folder: _Usage(8 << 30))
    assert is_sound(machine.shared_memory(tmp_path, gpus=2)) == "PASS"


class _Usage:
    def __init__(self, total):
        self.total = self.free = total


@pytest.mark.parametrize(
    ("chosen", "resolved", "status", "words"),
    [
        (None, "127.0.0.1", "PASS", "GLOO_SOCKET_IFNAME to the interface between the hosts, as in eth0"),
        (None, "10.0.0.1", "PASS", "eth0 (10.0.0.1)"),
        (None, None, "WARN", "does not resolve"),
        (None, "10.9.9.9", "WARN", "which no interface here has"),
        ("eth0", None, "PASS", "eth0, by GLOO_SOCKET_IFNAME"),
        ("eth0,ib7", "10.0.0.1", "FAIL", "there is no interface ib7, only lo, eth0"),
    ],
)
def test_network(chosen, resolved, status, words):
    variables = {"GLOO_SOCKET_IFNAME": chosen} if chosen else {}
    found = machine.network(variables, LO | ETH, "here", resolved)
    assert is_sound(found) == status
    assert words in found.text


def test_a_name_that_does_not_resolve_is_none():
    assert machine.resolve("localhost") == "127.0.0.1"
    assert machine.resolve("no.such.host.invalid") is None


def test_clock():
    now = machine._EARLIEST + 1e6
    assert is_sound(machine.clock(now, 0.01)) == "PASS"
    assert is_sound(machine.clock(now, -30.0)) == "WARN"
    assert is_sound(machine.clock(0.0, 0.0)) == "WARN"


def test_disk(tmp_path):
    assert storage.existing(tmp_path / "a/b") == tmp_path
    measured = storage.measure(tmp_path)
    assert measured.free_bytes > 0
    assert measured.sync_s > 0
    assert list(tmp_path.iterdir()) == []
    for free, sync_s, status in (
        (10**12, 0.01, "PASS"), (10**12, 0.9, "WARN"), (10**9, 0.01, "WARN"), (10**6, 0.01, "FAIL"),
    ):  # fmt: skip
        assert is_sound(storage.disk(tmp_path, storage.Disk(free, sync_s, 0.0))) == status
    found = storage.not_writable(tmp_path, OSError(30, "Read-only file system"))
    assert is_sound(found) == "FAIL"
    assert "Read-only file system" in found.text


def downloaded(folder: Path, size: int) -> Path:
    """Write a folder as a download of MNIST makes it, with files of other content."""
    folder.mkdir(parents=True)
    for names in SOURCES["mnist"].files:
        (folder / names[0]).write_bytes(hashlib.sha256(names[0].encode()).digest() * size)
    manifest.write(folder, "mnist")
    return folder


def test_downloaded_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCKSTEP_DATA", raising=False)
    assert [is_sound(one) for one in storage.datasets(None)] == ["PASS"]
    folder = downloaded(tmp_path / "cache/lockstep/mnist", 100)
    (found,) = storage.datasets(None)
    assert (is_sound(found), found.check) == ("PASS", "data mnist")
    assert "SHA-256" in found.text
    (found,) = storage.datasets(None, max_bytes=1000)
    assert "not read, to save time" in found.text
    path = folder / SOURCES["mnist"].files[0][0]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    (found,) = storage.datasets(None)
    assert is_sound(found) == "FAIL"
    assert path.name in found.text
    (folder / manifest.NAME).unlink()
    (found,) = storage.datasets(None)
    assert is_sound(found) == "PASS"
    assert "placed by hand" in found.text


def test_image_caches(tmp_path):
    assert storage.image_caches(tmp_path).text == "none"
    (tmp_path / "partial").mkdir()
    writer = mapped.CacheWriter(tmp_path / "partial", tmp_path / "c")
    writer.write(0, np.arange(300 * 4 * 4 * 3, dtype=np.uint32).astype(np.uint8).reshape(300, 4, 4, 3))
    writer.finish(300, (4, 4, 3), {})
    writer.close()
    assert is_sound(storage.image_caches(tmp_path)) == "PASS"
    assert "64 images in 1 of 1" in storage.image_caches(tmp_path).text
    (tmp_path / ".d-partial").mkdir()  # a cache that another program is writing
    (tmp_path / ".d-partial/manifest.json").write_text("{")
    assert "64 images in 1 of 1" in storage.image_caches(tmp_path).text
    pixels = tmp_path / "partial/pixels"
    content = bytearray(pixels.read_bytes())
    content[-1] ^= 1  # The last image is in the sample.
    pixels.write_bytes(content)
    found = storage.image_caches(tmp_path)
    assert is_sound(found) == "FAIL"
    assert "image 299" in found.text


def test_the_sum_of_two_processes(tmp_path):
    expected = digest([Reduction(Alone(), TOWERS)(vectors())]).hex()
    assert is_sound(exactness.reduction([expected, expected])) == "PASS"
    found = exactness.reduction([expected, "0" * 64])
    assert is_sound(found) == "FAIL"
    assert "process 1: 000" in found.text
    program = [sys.executable, "-c", "import sys; sys.exit('no route to host')"]
    failed = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    asleep = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert exactness.totals([failed], timeout_s=30) == ["no route to host"]
    assert exactness.totals([asleep], timeout_s=0.1) == ["no answer within 0 s"]
    asleep.kill()
    asleep.communicate()


def test_another_order_of_additions_would_be_noticed():
    """Sums in other orders have other bits, so the check of the exact sum can fail."""
    total = Reduction(Alone(), TOWERS)(vectors())
    one_by_one = vectors()[0]
    for vector in vectors()[1:]:
        one_by_one = one_by_one + vector
    assert not torch.equal(total, one_by_one)


def test_the_arithmetic_probe_is_stated():
    own = exactness.machine(torch.device("cpu"))
    json.dumps(own)
    assert len(own["probe"]) == 64
    assert own["probe"][:12] in exactness.arithmetic(own).text
    assert exactness.machine(torch.device("cpu")) == own
