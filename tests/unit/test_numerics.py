"""The number of cores that a process may use, and the description of a CPU."""

import math
import os

import pytest

from lockstep import hardware


@pytest.mark.parametrize(
    ("groups", "limits", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/gone\n", {}, math.inf),
        ("4:cpu:/b\n0::/a\n", {"a/cpu.max": "50000 100000\n"}, 0.5),
        ("nonsense\n", {}, math.inf),
    ],
)
def test_the_quota_is_the_least_of_a_control_group_and_its_parents(tmp_path, groups, limits, cores):
    """The files are /proc/self/cgroup and those under /sys/fs/cgroup."""
    (tmp_path / "self").write_text(groups)
    for name, text in limits.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    assert hardware.quota(tmp_path / "self", tmp_path / "cgroup") == cores


@pytest.mark.parametrize(("quota", "cores"), [(1.5, 1), (0.5, 1), (2.0, 2), (math.inf, 3), (8.0, 3)])
def test_the_number_of_cores_is_whole_and_within_affinity_and_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    monkeypatch.setattr(hardware, "quota", lambda: quota)
    assert hardware.cores() == cores


def test_a_cpu_is_described_by_what_decides_its_kernels():
    cpu = hardware.cpu()
    assert set(cpu) == {"model", "flags", "caches"}
    assert "smep" not in cpu["flags"].split()  # a flag that decides no arithmetic
