"""The description of a CPU."""

from lockstep import hardware


def test_a_cpu_is_described_by_what_decides_its_kernels():
    cpu = hardware.cpu()
    assert set(cpu) == {"model", "flags", "caches"}
    assert "smep" not in cpu["flags"].split()  # a flag that decides no arithmetic
