"""lockstep doctor: this machine computes the right bits, and a machine that does not is told
apart.
"""

import json
from importlib import import_module

import pytest
import torch

from lockstep import hardware
from lockstep.kernels.portable import backends

doctor = import_module("lockstep.commands.doctor")  # the package has the command by this name


@pytest.mark.slow
def test_this_machine_has_the_right_bits_on_1_and_2_processes(here, tmp_path):
    done = here("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["right"]
    assert record["weights_sha256"] == {"1": doctor._SHA256, "2": doctor._SHA256}
    assert list(tmp_path.iterdir()) == []


def test_other_bits_end_with_an_error_and_all_that_is_known(here, monkeypatch):
    results = {1: doctor._SHA256, 2: "0" * 64}
    monkeypatch.setattr(
        doctor,
        "record_of",
        lambda spec, quiet: {"weights_sha256": results[spec.placement.processes]},
    )
    monkeypatch.setattr(hardware, "gpu_problem", lambda: "the driver is too old")
    uses = {"8-bit integers": ["matrix products"], "float32": ["convolutions"]}
    monkeypatch.setattr(backends, "uses_by_backend", lambda: uses)
    done = here("doctor")
    assert done.returncode == 4
    assert "computes other bits" in done.stderr
    assert "--no-portable" in done.stderr
    first_words = [line.split()[0] for line in done.stdout.splitlines()]
    assert first_words == ["cpu", "native", "portable", "gpu", "bits", "bits"]
    assert "none: a driver is here, but the driver is too old" in done.stdout
    assert (
        "portable bits are those of every kind of CPU tried; computed here in 8-bit integers and float32\n"
        in done.stdout
    )
    assert "MKL" not in done.stdout
    assert "Winograd" in json.loads(here("doctor", "--json").stdout)["native"]
    assert "on 1 process: right" in done.stdout
    assert "on 2 processes: WRONG, sha256 000000000000" in done.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_with_a_gpu_it_names_the_package_for_its_utilisation(here, monkeypatch, installed):
    monkeypatch.setattr(doctor, "record_of", lambda spec, quiet: {"weights_sha256": doctor._SHA256})
    monkeypatch.setattr(hardware, "gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "a GPU")
    monkeypatch.setattr(doctor, "find_spec", lambda name: object() if installed else None)
    done = here("doctor")
    assert done.returncode == 0
    assert "gpu   a GPU\n" in done.stdout
    assert ("pip install nvidia-ml-py" in done.stdout) != installed
