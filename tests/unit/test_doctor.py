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


class Usage:
    """Stand-in for the usage of a disk."""

    def __init__(self, total):
        self.total = self.free = total


def interface(chosen, resolved):
    variables = {"GLOO_SOCKET_IFNAME": chosen} if chosen else {}
    return machine.network(variables, LO | ETH, "here", resolved)


def shared_memory(gib, gpus):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda folder: Usage(gib * 2**30))
        return machine.shared_memory(Path("/"), gpus)


NOW = machine._EARLIEST + 1e6
READ_ONLY = OSError(30, "Read-only file system")
JUDGED = [
    *((machine.torch_build(version, "torch>=2.13"), status, version) for version, status in (
        ("2.13.0+cpu", "PASS"), ("2.13.1", "PASS"), ("2.14.0", "WARN"), ("2.12.9", "FAIL"), ("1.99", "FAIL"))),
    (machine.devices("Xeon", 2, [], problem=None), "PASS", "Xeon, 2 cores, no GPU"),
    (machine.devices("Xeon", 2, [], problem="an old driver"), "WARN", "torch sees no GPU: an old driver"),
    (machine.devices("Xeon", 2, ["H100", "H100"], problem=None), "PASS", "2 GPUs: H100, H100"),
    (machine.threads({}, 1), "PASS", "one thread"),
    (machine.threads({}, 2), "FAIL", "2 threads"),
    (machine.threads({"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "1"}, 1), "PASS", "OMP_NUM_THREADS=8 of this"),
    (machine.threads({"ONEDNN_MAX_CPU_ISA": "AVX2", "PATH": "/bin"}, 1), "WARN", "ONEDNN_MAX_CPU_ISA=AVX2"),
    (machine.cpu_quota(2, 2, math.inf), "PASS", "no quota"),
    (machine.cpu_quota(4, 64, 4.5), "PASS", "4.5"),
    (machine.cpu_quota(1, 64, 0.5), "WARN", "0.5 of a core"),
    (machine.shared_memory(Path("/none"), gpus=1), "PASS", "not needed"),
    (machine.shared_memory(Path("/none"), gpus=2), "WARN", "0.0 GiB"),
    (shared_memory(0.06, gpus=2), "WARN", "0.1 GiB"),
    (shared_memory(8, gpus=2), "PASS", "8.0 GiB"),
    (interface(None, "127.0.0.1"), "PASS", "GLOO_SOCKET_IFNAME to the interface between the hosts, as in eth0"),
    (interface(None, "10.0.0.1"), "PASS", "eth0 (10.0.0.1)"),
    (interface(None, None), "WARN", "does not resolve"),
    (interface(None, "10.9.9.9"), "WARN", "which no interface here has"),
    (interface("eth0", None), "PASS", "eth0, by GLOO_SOCKET_IFNAME"),
    (interface("eth0,ib7", "10.0.0.1"), "FAIL", "there is no interface ib7, only lo, eth0"),
    (machine.clock(NOW, 0.01), "PASS", "0.01 s"),
    (machine.clock(NOW, -30.0), "WARN", "30.0 s"),
    (machine.clock(0.0, 0.0), "WARN", "before 2025"),
    *((storage.disk(Path("/r"), storage.Disk(free, sync_s, 0.0)), status, "/r") for free, sync_s, status in (
        (10**12, 0.01, "PASS"), (10**12, 0.9, "WARN"), (10**9, 0.01, "WARN"), (10**6, 0.01, "FAIL"))),
    (storage.not_writable(Path("/r"), READ_ONLY), "FAIL", "Read-only file system"),
]  # fmt: skip


@pytest.mark.parametrize(("finding", "status", "words"), JUDGED)
def test_a_check_judges_the_values_that_it_is_given(finding, status, words):
    assert is_sound(finding) == status
    assert words in finding.text


def is_sound(finding):
    """Only a finding other than PASS has a remedy."""
    assert bool(finding.remedy) == (finding.status != "PASS")
    return finding.status


def test_a_name_that_does_not_resolve_is_none():
    assert machine.resolve("localhost") == "127.0.0.1"
    assert machine.resolve("no.such.host.invalid") is None


def test_a_disk_is_measured_without_a_trace(tmp_path):
    assert storage.existing(tmp_path / "a/b") == tmp_path
    measured = storage.measure(tmp_path)
    assert measured.free_bytes > 0
    assert measured.sync_s > 0
    assert list(tmp_path.iterdir()) == []


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
    with mapped.new_cache(tmp_path / "c") as writer:
        writer.write(0, np.arange(300 * 4 * 4 * 3, dtype=np.uint32).astype(np.uint8).reshape(300, 4, 4, 3))
        writer.finish(300, (4, 4, 3), {})
    assert is_sound(storage.image_caches(tmp_path)) == "PASS"
    assert "64 images in 1 of 1" in storage.image_caches(tmp_path).text
    (tmp_path / ".d-partial").mkdir()  # a cache that another program is writing
    (tmp_path / ".d-partial/manifest.json").write_text("{")
    assert "64 images in 1 of 1" in storage.image_caches(tmp_path).text
    pixels = tmp_path / "c/pixels"
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
