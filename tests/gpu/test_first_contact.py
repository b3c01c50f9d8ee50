"""benchmarks/gpu on a machine without a GPU: it is rehearsed, so that the minutes on a real one are
not spent on it.
"""

import os
import re
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest
from benchmarks.gpu import count, packed, steps

from tests.documents import ROOT
from tests.helpers import read_json
from tests.images import noise

FILES = [f"{name}.bin" for names in packed.PARTS.values() for name in names]


@pytest.fixture
def kit(tmp_path):
    """Return the folder of six files in CIFAR-10's format, of 40 images each, and that of their
    packed parts.
    """
    (tmp_path / "plain").mkdir()
    for number, name in enumerate(FILES):
        records = noise(number, 40, 3073)
        (tmp_path / "plain" / name).write_bytes(records.tobytes())
    packed.pack(tmp_path / "plain", tmp_path / "kit")
    return tmp_path / "plain", tmp_path / "kit"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_packed_data_loses_nothing_and_a_damaged_part_is_refused(kit, tmp_path):
    plain, parts = kit
    assert sorted(packed.unpack(parts, tmp_path / "again")) == sorted(FILES)
    assert content(tmp_path / "again") == content(plain)
    with (
        zipfile.ZipFile(parts / "cifar-b.zip", "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("test_batch.labels", bytes(40))
    with pytest.raises(SystemExit, match=r"cifar-b\.zip: test_batch is damaged"):
        packed.unpack(parts, tmp_path / "again")


@pytest.mark.slow  # two profiles
def test_a_count_has_the_launches_of_each_tower_and_one_update():
    one, two = (
        count.counted(f"digits,batch=8,towers={towers}", as_graph=False) for towers in (1, 2)
    )
    graphs = count.counted("digits,batch=8,towers=2")
    assert graphs["launches"] < two["launches"] / 2
    assert 0 < one["copies"] < one["launches"] < one["operators"]
    assert one["launches"] < two["launches"] < 2 * one["launches"]
    assert two["most"]["convolution"] == 2 * one["most"]["convolution"]


def event(name, device, us=0.0, note=False):
    span = SimpleNamespace(elapsed_us=lambda: us)
    device_type = SimpleNamespace(name=device)
    return SimpleNamespace(
        name=name, device_type=device_type, time_range=span, is_user_annotation=note
    )


def test_a_profile_is_divided_by_its_steps_and_counts_the_gpu():
    host = [
        "aten::mm",
        "cudaLaunchKernel",
        "cudaGraphLaunch",
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
    ]
    events = [event(name, "CPU", 9.0) for name in host]
    events += [
        event("gemm", "CUDA", 30.0),
        event("gemm", "CUDA", 10.0),
        event("Memcpy HtoD", "CUDA", 2.0),
    ]
    found = steps.profiled([*events, event("Optimizer.step", "CUDA", 99.0, note=True)], 2)
    assert found.pop("longest")[0] == {"kernel": "gemm", "ms": 0.02, "calls": 1.0}
    assert found == {
        "operators": 0.5,
        "launches": 1.0,
        "waits": 0.5,
        "kernels": 1.0,
        "busy_ms": 0.021,
    }


@pytest.mark.slow  # a dozen programs
@pytest.mark.timeout(1200)
def test_the_first_contact_is_rehearsed_whole(kit, tmp_path):
    plain, parts = kit
    out, place = tmp_path / "out", tmp_path / "place"
    variables = {"REHEARSE": "1", "PY": sys.executable, "KIT": parts, "OUT": out, "PLACE": place}
    done = subprocess.run(
        ["bash", ROOT / "benchmarks/gpu/first.sh"],
        env={**os.environ, **{k: str(v) for k, v in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    passed = re.findall(r"^\[ *\d+ s\] PASS (\w+)", (out / "log.txt").read_text(), re.M)
    assert passed == ["data", "canary", "portable", "bits", "steps", "cifar10", "checks"]
    assert content(place / "data/cifar-10-batches-bin") == content(plain)
    records = {path.stem: read_json(path) for path in out.glob("*.json")}
    assert {*records} == {"gpu-check-portable", "gpu-check", "gpu-bits", "gpu-steps", "gpu-runs"}
    assert {one["status"] for one in records["gpu-check-portable"]["checks"].values()} <= {
        "PASS",
        "SKIP",
    }
    cases = [case for name in ("bits", "steps", "runs") for case in records[f"gpu-{name}"]["cases"]]
    assert [case for case in cases if "error" in case] == []
