"""`make gpu-check` on a machine without a GPU: what does not need one is checked, and the rest is
skipped by name.
"""

import itertools

import pytest
import torch
from benchmarks import gpu_check
from benchmarks.gpu import bits

from lockstep.kernels.portable import elementary
from tests.helpers import read_json


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Return a function (*words) -> the exit code, the printed lines, and the checks in the
    file.
    """
    monkeypatch.setattr(gpu_check, "FILE", tmp_path / "gpu-check.json")
    monkeypatch.delenv("LOCKSTEP_DATA", raising=False)

    def check(*words):
        monkeypatch.setattr("sys.argv", ["gpu_check", *words])
        with pytest.raises(SystemExit) as end:
            gpu_check.main()
        return (
            end.value.code,
            capsys.readouterr().out.splitlines(),
            read_json(gpu_check.FILE)["checks"],
        )

    return check


@pytest.mark.slow  # three runs
def test_what_needs_no_gpu_is_checked_and_the_rest_skipped(checked):
    code, lines, checks = checked("--only", "hash")
    assert code == 0
    assert checks["one hash"]["status"] == "PASS"
    assert len({*checks["one hash"]["facts"].values()}) == 1
    assert len(checks["one hash"]["facts"]) == max(2, min(4, torch.cuda.device_count()))
    code, lines, checks = checked("--only", "and GPU")
    assert code == 0
    assert {name: one["status"] for name, one in checks.items()} == {
        f"CPU and GPU {name}": "SKIP" for name in gpu_check.NATIVE
    }
    assert "needs 1 GPU, and torch sees 0" in lines[0]


def test_the_comparison_finds_the_operation_with_other_bits(monkeypatch):
    monkeypatch.setattr(bits, "CORES", 1)  # as all tests compute
    assert bits.differences("digits,batch=16", torch.device("cpu")) == {}
    right, calls = elementary.sqrt, itertools.count()
    monkeypatch.setattr(elementary, "sqrt", lambda x: right(x) * (1.0 + 1e-7 * (next(calls) % 2)))
    found = bits.differences("digits,batch=16", torch.device("cpu"))
    assert found
    assert {name.split(" ")[0] for name in found} == {"aten.native_batch_norm.default"}


def test_a_failed_check_keeps_its_message_and_the_others_go_on(checked, monkeypatch):
    monkeypatch.setattr(gpu_check, "KERNEL_TOLERANCE", 0.0)
    monkeypatch.setattr(
        gpu_check, "CHECKS", {"kernels": gpu_check.kernels, "GPUs of kernels": gpu_check.gpus}
    )
    code, lines, checks = checked("--only", "kernels")
    assert code == 1
    assert checks["kernels"]["status"] == "FAIL"
    assert "conv_relu differs by" in checks["kernels"]["facts"]
    assert "conv_relu differs by" in lines[0]
    assert checks["GPUs of kernels"]["status"] == ("PASS" if torch.cuda.is_available() else "SKIP")
