"""lockstep doctor: this machine computes the right bits, and a machine that does not is told apart."""

import json
from importlib import import_module

import pytest

from lockstep import hardware
from lockstep.errors import LockstepError
from lockstep.launch.submit import Outcome

doctor = import_module("lockstep.commands.doctor")  # the package has the command by this name
RESULT = {"weights_sha256": doctor._SHA256, "images_per_s": 1000.0, "total_s": 1.0, "device": "cpu"}


@pytest.mark.slow
def test_this_machine_computes_the_right_bits_on_one_and_two_processes(refused_here, tmp_path):
    done = refused_here("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert record["right"]
    assert [(run["processes"], run["right"]) for run in record["runs"][:2]] == [(1, True), (2, True)]
    assert {run["weights_sha256"] for run in record["runs"][:2]} == {doctor._SHA256}
    assert min(run["images_per_s"] for run in record["runs"]) > 0
    assert {"cpu", "cpu_capability", "versions"} <= record["machine"].keys()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def computed(monkeypatch):
    """Return a function (results by number of processes) that stands in for the runs; it returns their specs."""

    def stand_in(results):
        specs = []

        def submitted(spec, *_):
            specs.append(spec)
            return Outcome(RESULT | results.get(spec.placement.processes, {}))

        monkeypatch.setattr(doctor, "submit", submitted)
        return specs

    return stand_in


def test_other_bits_end_with_an_error_and_all_that_is_known(refused_here, computed, monkeypatch, synthetic_data):
    computed({2: {"weights_sha256": "0" * 64}})
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # replaced
    monkeypatch.setattr(hardware, "gpu_problem", lambda: "the driver is too old")
    done = refused_here("doctor", "--data", synthetic_data("mnist").parent)
    assert done.returncode == 4
    assert "1 of 2 runs ended with other bits" in done.stderr
    assert "--no-portable" in done.stderr
    starts = [line.split()[0] for line in done.stdout.splitlines()]
    assert starts == ["cpu", "gpu", "libraries", "variable", "data", "bits", "bits"]
    assert "none: a driver is here, but the driver is too old" in done.stdout
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in done.stdout
    assert "on 1 process (cpu): right" in done.stdout
    assert "on 2 processes (cpu): WRONG, sha256 000000000000" in done.stdout


def test_a_gpu_trains_too_and_its_bits_are_only_stated(refused_here, computed, monkeypatch):
    specs = computed({})
    facts = {"cores": 2, "processor": "x", "gpus": ["H100"], "gpu_problem": None, "data": {}}
    machine = {"cpu_capability": "AVX2", "versions": {}, "environment": {}}
    monkeypatch.setattr(doctor, "_machine", lambda data: facts | {"machine": machine})
    done = refused_here("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert [(spec.recipe.arithmetic, spec.placement.device) for spec in specs] == [
        ("portable", "cpu"), ("portable", "cpu"), ("native", "cuda"),
    ]  # fmt: skip
    assert "native on 1 process (cpu): not known" in done.stdout


def test_a_run_that_fails_is_the_error(refused_here, monkeypatch):
    def fails(*_):
        raise LockstepError("the processes cannot connect", 4)

    monkeypatch.setattr(doctor, "submit", fails)
    done = refused_here("doctor")
    assert done.returncode == 4
    assert "the processes cannot connect" in done.stderr
    assert done.stdout.startswith("cpu ")


def test_it_is_refused_under_an_outer_launch(refused_here, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    done = refused_here("doctor")
    assert done.returncode == 2
    assert "starts its own processes" in done.stderr
