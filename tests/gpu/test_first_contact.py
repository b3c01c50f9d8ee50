"""benchmarks/gpu on a machine without a GPU: it is rehearsed, so that the minutes on a real one are
not spent on it.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest
import torch
from benchmarks.gpu import count, packed, steps
from benchmarks.peers import airbench
from torch.autograd.profiler_util import Interval
from torch.profiler import ProfilerActivity, profile, record_function

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


def test_a_list_is_copied_at_once_only_if_it_lies_in_memory_as_its_source_does():
    def launches(name, *lists):
        with count.Count() as counted:
            getattr(torch, name)(*lists)
        return counted.launches[name]

    image = torch.randn(2, 3, 4, 5)
    lasts = [torch.empty_like(image, memory_format=torch.channels_last) for _ in range(3)]
    halves = [torch.empty(2, 3, 4, 5, dtype=torch.bfloat16) for _ in range(3)]
    assert launches("_foreach_copy_", lasts, [one.clone() for one in lasts]) == 1
    assert launches("_foreach_copy_", lasts, [image] * 3) == 3
    assert launches("_foreach_copy_", halves, [image] * 3) == 1
    assert launches("_foreach_copy_", [halves[0], image.clone()], [image] * 2) == 2
    assert launches("_foreach_mul_", lasts, 2.0) == 1
    assert launches("_foreach_add_", lasts, [image] * 3) == 3
    assert launches("_foreach_add", [image] * 2, halves[:2]) == 2


@pytest.mark.slow  # a dozen short trainings
def test_a_count_has_the_launches_of_each_tower_one_update_and_each_listener():
    one, two = (
        count.counted(f"digits,batch=8,towers={towers}", as_graph=False) for towers in (1, 2)
    )
    graphs = count.counted("digits,batch=8,towers=2")
    assert graphs["with_readers"]["logged"] <= 3
    of_two = count.counted("digits,batch=8,towers=2", processes=2)
    assert of_two["with_readers"]["logged"] <= 6
    assert 0 < one["copies"] < one["launches"] < one["operators"]
    assert one["launches"] < two["launches"] < 2 * one["launches"]
    assert two["most"]["convolution"] == 2 * one["most"]["convolution"]
    for counted in (one, graphs):
        launches = counted["with_readers"]
        assert launches["nothing"] == counted["launches"]
        assert launches["nothing"] <= launches["unread"] <= launches["logged"]
        assert launches["logged"] < launches["summarised"]
        assert launches["unread"] < counted["in_a_run"] < launches["summarised"]


def event(name, device, start=0.0, us=0.0, note=False):
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name=device),
        time_range=Interval(start, start + us),
        is_user_annotation=note,
    )


def test_a_profile_is_divided_by_its_steps_and_counts_the_gpu():
    host = [
        "aten::mm",
        "cudaLaunchKernel",
        "cudaGraphLaunch",
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
    ]
    events = [event(name, "CPU", us=9.0) for name in host]
    events += [
        event("gemm", "CUDA", 0.0, 30.0),
        event("gemm", "CUDA", 60.0, 10.0),
        event("a tower beside it", "CUDA", 20.0, 20.0),
        event("Memcpy HtoD", "CUDA", 80.0, 2.0),
    ]
    found = steps.profiled([*events, event("Optimizer.step", "CUDA", 0.0, 99.0, note=True)], 2)
    assert found.pop("longest")[0] == {"kernel": "gemm", "ms": 0.02, "calls": 1.0}
    assert found == {
        "operators": 0.5,
        "launches": 1.0,
        "waits": 0.5,
        "kernels": 1.5,
        "busy_ms": 0.026,
    }


def test_torch_marks_the_spans_of_a_profile_and_nothing_else():
    on_cpu = [ProfilerActivity.CPU]
    with profile(activities=on_cpu, acc_events=True) as found, record_function("a span"):
        torch.ones(2).add_(1)
    assert {one.name for one in found.events() if one.is_user_annotation} == {"a span"}


def test_the_parts_of_a_call_fit_into_its_time_with_what_is_set_up_before():
    script = (ROOT / "benchmarks/gpu/first.sh").read_text()
    most = {name: int(seconds) for name, seconds in re.findall(r"\[(\w+)\]=(\d+)", script)}
    calls = re.findall(r'\[\d\]="([a-z\d ]+)"', script)
    assert len(calls) == 2
    for parts in calls:
        assert sum(most[name] for name in ["wheels", "data", *parts.split()]) <= 570


# what `benchmarks.peers.airbench` runs, edits and reads of the program
AIRBENCH = """
import os
import sys
import torch
import torchvision.transforms as T

normalize = T.Normalize(torch.tensor((0.5, 0.5, 0.5)), torch.tensor((0.25, 0.25, 0.25)))
train, test = (torch.load(f"cifar10/{name}.pt") for name in ("train", "test"))

@torch.compile
def main(run):
    images = normalize((train["images"].half() / 255).permute(0, 3, 1, 2))
    assert images.shape[1:] == (3, 32, 32) and len(test["labels"]) == 40
    share = (images.float().mean() ** 2).clamp(max=1)
    print(f"|  {run!s:>6}  |      7  |     0.8984  |   0.9346  |              |        2.1912  |")
    print(f"|          |   eval  |     0.8984  |   0.9346  |      0.9{len(train['labels'])}  |        2.5912  |")
    return share

if __name__ == "__main__":
    print(os.path.basename(sys.argv[0]))
    model = torch.nn.Linear(1, 1)
    model.compile(mode="max-autotune")
    main("warmup")
    accs = [main(run) for run in range(200)]
"""


def test_airbench_gets_its_data_and_its_times_are_read(kit, tmp_path, monkeypatch, capsys):
    (tmp_path / "airbench94_muon.py").write_text(AIRBENCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["airbench", "airbench94_muon.py", str(kit[0]), "--runs", "2"])
    airbench.main()
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (record["accuracies"], record["seconds"]) == ([0.92, 0.92], [2.5912, 2.5912])
    (tmp_path / "airbench94_muon.py").write_text(AIRBENCH.replace("range(200)", "range(100)"))
    with pytest.raises(SystemExit, match="is it airbench94_muon"):
        airbench.main()


@pytest.mark.slow  # a dozen programs
@pytest.mark.timeout(1200)
def test_the_first_contact_is_rehearsed_whole(kit, tmp_path):
    plain, parts = kit
    out, place = tmp_path / "out", tmp_path / "place"
    (parts / "airbench94_muon.py").write_text(AIRBENCH)
    variables = {"REHEARSE": "1", "PY": sys.executable, "KIT": parts, "OUT": out, "PLACE": place}
    done = subprocess.run(
        ["bash", ROOT / "benchmarks/gpu/first.sh", "1", "2", "bits", "checks"],
        env={**os.environ, **{k: str(v) for k, v in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    passed = re.findall(r"^\[ *\d+ s\] PASS (\w+)", (out / "log.txt").read_text(), re.M)
    parts_of_calls = "facts graphs steps peers portable cifar10 airbench agree onehash"
    assert passed == ["data", *parts_of_calls.split(), "bits", "checks"]
    assert content(place / "data/cifar-10-batches-bin") == content(plain)
    records = {path.stem: read_json(path) for path in out.glob("*.json")}
    checks = {name for name in records if name.startswith("gpu-check")}
    assert len(checks) == 5
    for name in checks:
        found = {one["status"] for one in records[name]["checks"].values()}
        assert found <= {"PASS", "SKIP"}
    tables = {"gpu-steps", "gpu-peers", "gpu-runs", "gpu-airbench"}
    assert {*records} - checks == tables
    cases = [case for name in tables for case in records[name]["cases"]]
    assert [case for case in cases if "error" in case] == []
    graphs, kernels = records["gpu-steps"]["cases"][:2]
    assert (graphs["launches"], kernels["launches"]) == (1, 0)
    assert graphs["weights_sha256"] == kernels["weights_sha256"]
    runs = records["gpu-runs"]["cases"]
    assert {case["precision"] for case in runs if "accuracy" in case and "device" in case} == {
        "float32"
    }
