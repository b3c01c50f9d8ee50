"""How busy GPUs are: in logged steps, in warnings, at the end of a run and in its report. NVML is a
stand-in.
"""

import json

import pytest
import torch
from tests.helpers import lockstep_error, read_json, recipe_with, rows_of, summaries
from tests.runs import fit_here

from lockstep.config.placement import Placement
from lockstep.core import gpus
from lockstep.core.gpus import Gpus
from lockstep.core.group import Group
from lockstep.jobs import replica as sessions
from lockstep.jobs.context import Context
from lockstep.jobs.replica import Replica
from lockstep.pages import runs
from lockstep.recipes import get_recipe
from lockstep.runs.run import Run

GB = 10**9


@pytest.fixture
def percent(monkeypatch):
    """The utilisation of each GPU in percent, by number, as the driver's library gives it: no other
    GPU is known.
    """
    shown = {0: 93, 1: 4}
    monkeypatch.setattr(torch.cuda, "utilization", lambda number: shown[number])
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda number: (number + 1) * GB)
    return shown


def test_each_gpu_is_read_at_most_once_a_second(percent):
    seen = Gpus({0: 0, 1: 1})
    assert seen.read(0.9) == {}
    first = seen.read(1.0)
    percent[0] = 50
    assert seen.read(1.9) == first
    assert first == {
        0: {"utilization": 0.93, "memory_bytes": GB},
        1: {"utilization": 0.04, "memory_bytes": 2 * GB},
    }
    assert seen.read(2.0)[0]["utilization"] == 0.5
    assert first[0]["utilization"] == 0.93
    assert seen.mean == pytest.approx({0: 0.715, 1: 0.04})


def test_a_gpu_that_idles_is_named_once(percent, caplog):
    seen = Gpus({0: 0, 1: 1})
    for second in range(1, 10):
        seen.read(second)
    assert caplog.messages == []
    for second in range(10, 30):
        seen.read(second)
    assert len(caplog.messages) == 1
    assert "GPU 1 (process 1 of its host) idles: so far it computed 4% of the time" in caplog.text
    assert "--batch" in caplog.text
    assert "--processes" in caplog.text


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("nvidia-ml-py"), RuntimeError("no driver"), KeyError(2)]
)
def test_a_gpu_that_cannot_be_asked_is_left_out(percent, monkeypatch, error):
    def fails(number):
        if number == 0:
            raise error
        return 100

    monkeypatch.setattr(torch.cuda, "utilization", fails)
    assert [*Gpus({0: 0, 1: 1}).read(1.0)] == [1]


class ReadError(Exception):
    """Stands for the reading of the data, before which a session knows its GPUs."""


@pytest.mark.parametrize(
    ("device", "gpu", "hosts", "expected"),
    [
        ("cuda", 0, [7, 7, 8], {0: 0, 1: 1}),  # Those of another host are not seen.
        ("cuda", 0, [7, 8, 7], {0: 0, 1: 1}),
        ("cuda:3,1,0", 3, [7, 7], {3: 0, 1: 1}),
        ("cuda:2,2", 2, [7, 7], {2: 1}),
        ("cpu", None, [7, 7], {}),
    ],
)
def test_a_session_knows_the_gpus_of_its_host(monkeypatch, device, gpu, hosts, expected):
    def fails(*_):
        raise ReadError

    monkeypatch.setattr(Group, "processes", len(hosts))
    monkeypatch.setattr(Group, "hosts", lambda self: hosts)
    monkeypatch.setattr(sessions, "splits_of", fails)
    built, own = (
        Replica.__new__(Replica),
        torch.device("cpu") if gpu is None else torch.device("cuda", gpu),
    )
    with pytest.raises(ReadError):
        built.__init__(
            get_recipe("digits"), Placement(device=device), Context(device=own), {"train": None}
        )
    assert built.gpus == expected


def trained(path, monkeypatch, numbers):
    """Train a short run whose session has the GPUs `numbers`, which are read in every logged
    step.
    """
    begin = Replica.__init__

    def with_gpus(self, *args, **others):
        begin(self, *args, **others)
        self.gpus = {number: number for number in numbers}

    monkeypatch.setattr(Replica, "__init__", with_gpus)
    monkeypatch.setattr(gpus, "_APART_S", 0.0)
    recipe = recipe_with("digits", {"steps": 3, "batch": 32, "portable": False})
    return fit_here(recipe, path, Placement(summary_every=1, log_every=1)).result


def test_a_run_states_the_use_of_its_gpus(tmp_path, monkeypatch, percent, capfd):
    path = tmp_path / "run"
    result = trained(path, monkeypatch, [0, 1])
    assert result["gpu_utilization"] == pytest.approx({0: 0.93, 1: 0.04})
    lines = " ".join(capfd.readouterr().err.split())
    assert ", GPU 0 93%, GPU 1 4%" in lines
    ends = "GPU 0 busy 93% of the time; GPU 1 busy 4% of the time; memory of each process at most "
    assert f"gpus {ends}" in lines
    rows = rows_of(path, "step")
    assert [row["gpus"]["1"] for row in rows] == [{"utilization": 0.04, "memory_bytes": 2 * GB}] * 3
    assert [
        event.value for event in summaries(path / "tb").Scalars("gpu_0/utilization")
    ] == pytest.approx([0.93] * 3)
    assert ends in runs.page(Run(path))


def test_without_nvml_a_run_states_the_memory_alone(tmp_path, monkeypatch, capfd):
    result = trained(tmp_path / "run", monkeypatch, [0])
    assert result["gpu_utilization"] == {}
    assert "gpus memory of each process at most " in " ".join(capfd.readouterr().err.split())
    assert all("gpus" not in row for row in Run(tmp_path / "run").metrics())


def test_on_a_cpu_nothing_is_said_of_gpus(tmp_path, monkeypatch, percent, capfd):
    result = trained(tmp_path / "run", monkeypatch, [])
    assert "gpu_utilization" not in result
    assert "gpu" not in capfd.readouterr().err
    assert "gpu" not in (tmp_path / "run/metrics.jsonl").read_text()
    assert "GPU" not in runs.page(Run(tmp_path / "run"))


def test_a_damaged_share_is_an_error_of_the_file(tmp_path, monkeypatch, percent):
    trained(tmp_path / "run", monkeypatch, [0])
    path = tmp_path / "run/result.json"
    path.write_text(json.dumps(read_json(path) | {"gpu_utilization": {"0": "much"}}))
    with lockstep_error(r"result\.json"):
        runs.page(Run(tmp_path / "run"))
