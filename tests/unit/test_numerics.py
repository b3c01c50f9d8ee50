"""The number of cores that a process may use, and the description of a CPU."""

import os

import pytest

from lockstep import hardware


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("200000 100000", 2),
        ("max 100000", 3),
        ("800000 100000", 3),
        (None, 3),
    ],
)
def test_the_number_of_cores_is_whole_and_within_affinity_and_quota(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    monkeypatch.setattr(hardware, "_QUOTA", tmp_path / "cpu.max")
    if quota:
        (tmp_path / "cpu.max").write_text(quota)
    assert hardware.cores() == cores


def test_a_cpu_is_described_by_what_decides_its_kernels():
    cpu = hardware.cpu()
    assert set(cpu) == {"model", "flags", "caches"}
    assert "smep" not in cpu["flags"].split()  # a flag that decides no arithmetic
