"""The launcher: number of processes, choice of GPUs, signals, hangs, and the first cause of a
failure.
"""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.helpers import lockstep_error, many_open_files

from lockstep import hardware
from lockstep.config.placement import Placement
from lockstep.core.monitor import SLOW, Beat
from lockstep.errors import CRASH, DATA, ENVIRONMENT, STOP_SIGNALS
from lockstep.jobs.specs import EvaluateSpec, Output, TrainSpec
from lockstep.launch import submit, supervisor
from lockstep.launch.signals import StopRequest, handled_by, masked
from lockstep.launch.supervisor import End, Relay, Supervisor, begun, stopped
from lockstep.launch.world import World
from lockstep.recipes import get_recipe
from lockstep.runs.statefile import DamagedFileError, file_name
from lockstep.schema import validated


@pytest.mark.parametrize(
    ("gpus", "cores", "placement", "most", "of_a_head"),
    [
        (0, 2, {}, 2, 1),
        (0, 2, {"processes": 3}, 2, 1),
        (2, 16, {}, 2, 2),  # one for each GPU
        (2, 16, {"device": "cpu"}, 16, 1),
        (4, 16, {"device": "cuda:0,2"}, 2, 2),
    ],
)
def test_the_number_of_processes_follows_from_devices(
    monkeypatch, gpus, cores, placement, most, of_a_head
):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    assert submit.capacity(get_recipe("digits"), Placement(**placement)) == most
    head = get_recipe("photos")
    assert submit.capacity(head, Placement(**placement)) == of_a_head
    assert (
        submit.capacity(
            head.replace(arithmetic="portable", precision="float32"), Placement(**placement)
        )
        == most
    )


@pytest.mark.parametrize(
    ("gpus", "placement", "message"),
    [
        (0, {"device": "cuda"}, "sees no CUDA GPU"),
        (
            1,
            {"processes": 2},
            "each process needs a GPU of its own, and this host has 1 GPU for 2 processes: choose "
            "--processes 1 to 1",
        ),
        (2, {"device": "cuda:0,2"}, "there is no GPU 2: choose from 0 to 1"),
    ],
)
def test_a_gpu_that_does_not_exist_is_an_error(monkeypatch, gpus, placement, message):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    with lockstep_error(message, ENVIRONMENT):
        submit.capacity(get_recipe("digits"), Placement(**placement))


@pytest.mark.parametrize(
    ("families", "has"),
    [
        (None, False),  # There is no such interface.
        ([socket.AF_PACKET], False),  # It is down.
        ([socket.AF_PACKET, socket.AF_INET], True),
        ([socket.AF_INET6], True),
    ],
)
def test_an_interface_connects_processes_if_it_has_an_address(monkeypatch, families, has):
    found = {"eth0": [SimpleNamespace(family=socket.AF_INET)]}
    if families is not None:
        found[hardware.LOOPBACK] = [SimpleNamespace(family=family) for family in families]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    assert hardware.has_loopback() == has


@pytest.mark.parametrize(("has", "started"), [(True, 2), (False, 1)])
def test_without_a_loopback_interface_one_process_computes(monkeypatch, has, started):
    texts, numbers = [], []
    monkeypatch.setattr(hardware, "has_loopback", lambda: has)
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    monkeypatch.setattr(submit.logger, "warning", texts.append)
    monkeypatch.setattr(Supervisor, "run", lambda job: numbers.append(job.processes))
    spec = SPEC.replace(placement=Placement(device="cpu"))
    submit.submit(spec, Output())
    assert numbers == [started]
    assert len(texts) == (started == 1)
    submit.submit(spec, Output(quiet=True))
    assert len(texts) == (started == 1)
    if not has:
        spec = spec.replace(placement=Placement(device="cpu", processes=2))
        with lockstep_error("has no address: bring it up .* or leave out --processes", ENVIRONMENT):
            submit.submit(spec, Output())
        assert len(numbers) == 2


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:0,", "cpu:0"])
def test_a_malformed_device_is_rejected(text):
    with lockstep_error("as in cuda:0 or cuda:0,2"):
        validated(Placement, {"device": text})


SPEC = TrainSpec(recipe=get_recipe("digits"), placement=Placement(timeout=9), started=0.0, path="x")
# A worker receives signals from the moment on at which it has its handlers.
LISTEN = (
    f"import signal, time; signal.pthread_sigmask(signal.SIG_UNBLOCK, "
    f"{[*map(int, STOP_SIGNALS)]}); "
)
SLEEP = f"{LISTEN}time.sleep(60)"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """started(*codes) -> a supervisor of processes that run Python code in place of a job, and
    write how they ended.
    """
    jobs = []

    def start(*codes):
        real, number = subprocess.Popen, iter(codes)
        monkeypatch.setattr(
            subprocess,
            "Popen",
            lambda command, **_: real([sys.executable, "-S", "-c", next(number)], cwd=command[4]),
        )
        jobs.append(Supervisor(SPEC, Output(), World(), len(codes), tmp_path, {}))
        jobs[0]._start()
        monkeypatch.undo()
        return jobs[0]

    yield start
    for job in jobs:
        job._kill()


def test_when_a_worker_fails_only_the_other_workers_are_ended(started):
    other = subprocess.Popen([sys.executable, "-S", "-c", SLEEP])
    job = started("import sys; sys.exit(3)", SLEEP)
    assert job._wait() == ""
    assert job._failures() == {0: End(3), 1: End(-signal.SIGTERM)}
    assert other.poll() is None
    other.kill()
    other.wait()


KNOWN, CRASHED = (
    End(2, "unknown model", known=True, time=2.0),
    End(CRASH, "process 1 crashed:", time=2.0),
)
LOST, OTHER = (
    End(4, "lost the other processes", lost=True, time=1.0),
    End(CRASH, "process 2 crashed:", time=3.0),
)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([LOST, KNOWN], KNOWN.message),
        (
            [LOST, End(-9)],
            "process 1 of 2 (towers 2 to 3) was killed by SIGKILL before any step. Often this "
            "means",
        ),
        ([LOST], LOST.message),
        ([End(7)], "process 0 of 1 (towers 0 to 3) ended with exit code 7"),
        ([End(143), LOST, CRASHED, OTHER], CRASHED.message),
    ],
    ids=["known", "killed", "lost", "silent", "ended"],
)
def test_the_first_cause_of_a_failure_is_told(started, ends, message):
    job = started(*["pass"] * len(ends))
    assert job._first_cause(dict(enumerate(ends))).message.startswith(message)


def test_only_ctrl_c_counts_twice_and_only_after_a_second(monkeypatch):
    request, now, found = StopRequest(), [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for when, number in (
        (0.0, signal.SIGINT),
        (0.5, signal.SIGINT),
        (2.0, signal.SIGTERM),
        (3.0, signal.SIGINT),
    ):
        now[0] = when
        request.remember(number, None)
        found.append(request.repeated)
    assert found == [False, False, False, True]
    assert request.received == signal.SIGINT


def test_a_signal_ends_the_process_unless_it_has_work_to_save(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", None)
    request, done = StopRequest(), []

    def work():
        with request.signals_end_at_once(False):
            request.handle(signal.SIGTERM, None)
            done.append("a step")
            with request.signals_end_at_once(True):
                done.append("an evaluation")

    with pytest.raises(SystemExit) as end:
        work()
    assert (done, end.value.code) == (["a step"], 128 + signal.SIGTERM)
    assert request.at_once
    with pytest.raises(SystemExit):
        StopRequest().handle(signal.SIGINT, None)


def test_a_second_ctrl_c_ends_even_a_step(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", None)
    request, now = StopRequest(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with request.signals_end_at_once(False):
        request.handle(signal.SIGINT, None)
        now[0] = 2.0
        with pytest.raises(SystemExit):
            request.handle(signal.SIGINT, None)


def test_a_signal_that_is_held_back_is_not_lost():
    request = StopRequest()
    with masked(signal.SIG_BLOCK):
        # The runner of the tests may have other threads.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        program = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import time; time.sleep(0.2); {LISTEN}"]
        )
        program.terminate()  # while it has no handler, as a worker that imports torch
        with handled_by(request.remember):
            assert request.received == signal.SIGTERM
    assert program.wait() == -signal.SIGTERM


class Still(Supervisor):
    """Of worker processes with these heartbeats, one row at each look; the last row stays."""

    def __init__(self, *rows, world):
        super().__init__(SPEC, Output(), world, 2, SPEC.path, {})
        self.rows, self.looks = list(rows), 0

    def _running(self):
        self.looks += 1
        assert self.looks < 1000
        row = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        self._heartbeats = {
            number: type("Memory", (), {"beat": beat}) for number, beat in enumerate(row)
        }
        return [*self._heartbeats]


def looking(monkeypatch, seconds):
    """Let the launcher look without a pause. By its clock, a look takes `seconds`."""
    now = [0.0]
    monkeypatch.setattr(supervisor, "_POLL_S", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.append(now[-1] + seconds) or now[-1])


ROW = [Beat(slow=1, step=7), Beat(slow=1, step=7)]


@pytest.mark.parametrize(
    ("seconds", "rows", "looks"),
    [
        (0.5, [ROW], 19),  # 9 seconds in which no process has moved on, after the first look
        (0.5, [[ROW[0], Beat(slow=SLOW, step=7)]], 181),  # one does what may take ten times as long
        # one computes, and the other waits
        (0.5, [*([ROW[0], Beat(moves=i, slow=1, step=7)] for i in range(30))], 48),
        (0.5, [*([ROW[0], Beat(ticks=i, slow=1, step=7)] for i in range(30))], 48),  # or it reads
        (0.5, [*[ROW] * 10, ROW[:1]], 29),  # one has ended meanwhile
        (1000.0, [ROW], 10),  # The launcher itself was stopped.
    ],
    ids=["hang", "slow", "moves", "ticks", "ended", "stopped"],
)
def test_workers_of_which_none_moves_on_hang(monkeypatch, seconds, rows, looks):
    looking(monkeypatch, seconds)
    job = Still(*rows, world=World())
    hang = job._wait()
    assert job.looks == looks
    assert hang.startswith("the run hangs: no process has moved on for 9")  # or 90
    assert hang.endswith("in step 7")
    # In an outer launch, the one worker may wait for other hosts.
    with pytest.raises(AssertionError, match="1000"):
        Still(*rows, world=World("Slurm", 0, 2))._wait()


EVALUATION = EvaluateSpec(recipe=SPEC.recipe, placement=SPEC.placement, path=SPEC.path)


@pytest.mark.parametrize(
    ("spec", "steps", "sent", "killed"),
    [
        (SPEC, [-1, 7], 2, True),  # One has not begun a step, so none has done one.
        (SPEC, [7, 7], 9, False),  # They save when the step is done.
        (EVALUATION, [-1, -1], 2, True),
    ],
)
def test_a_stop_is_repeated_and_kills_only_without_work_to_save(
    monkeypatch, spec, steps, sent, killed
):
    signals = []
    looking(monkeypatch, 0.6)
    job = Still(
        *[[Beat(moves=look, step=step) for step in steps] for look in range(17)], [], world=World()
    )
    job.spec = spec
    monkeypatch.setattr(job, "_send", signals.append)
    job.request.remember(signal.SIGINT, None)
    monkeypatch.setattr(job, "_running", lambda: Still._running(job) if job.rows[0] else [])
    assert job._wait() == ""
    assert (signals, job.killed) == ([signal.SIGTERM] * sent, killed)


def test_a_second_ctrl_c_kills_processes_that_would_save(monkeypatch):
    looking(monkeypatch, 0.6)
    looks = [[Beat(moves=look, step=7), Beat(moves=look, step=7)] for look in range(9)]
    job = Still(*looks, [], world=World())
    monkeypatch.setattr(job, "_send", lambda number: None)

    def running():
        job.request.remember(signal.SIGINT, None)
        return Still._running(job)

    monkeypatch.setattr(job, "_running", running)
    assert job._wait() == ""
    assert (job.request.received, job.killed) == (signal.SIGINT, True)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_launcher_says_once_how_to_go_on(caplog, tmp_path, quiet):
    spec, sent = SPEC.replace(path=tmp_path / "x"), {}
    again = "stopped by Ctrl-C: start again with the same command"
    assert stopped(spec, signal.SIGINT, sent.get, quiet) == (None, 130, None)
    (tmp_path / "x").mkdir()
    # another program's
    (tmp_path / "x/recipe.json").write_text(get_recipe("mnist").model_dump_json())
    assert stopped(spec, signal.SIGINT, sent.get, quiet) == (None, 130, None)
    (tmp_path / "x/recipe.json").write_text(SPEC.recipe.model_dump_json())
    assert stopped(spec, signal.SIGTERM, sent.get, quiet).code == 143
    # A numbered run may be another program's of the same recipe.
    assert begun(spec.replace(numbered=True), sent.get) is None
    stopped(EVALUATION.replace(path=tmp_path / "x"), signal.SIGINT, sent.get, quiet)
    go_on = f"stopped by SIGTERM: continue with: lockstep train {tmp_path / 'x'} --resume"
    assert caplog.messages == [
        again,
        again,
        again.replace("Ctrl-C", "SIGTERM") if quiet else go_on,
        again,
    ]
    caplog.clear()
    sent["record"] = {"done": True}
    assert stopped(spec, signal.SIGHUP, sent.get, quiet).record == {"done": True}
    sent["stopped"] = True
    stopped(spec, signal.SIGHUP, sent.get, quiet)
    assert caplog.messages == ["stopped by SIGHUP: the job was complete"]


def restarts_until_it_ends(job, saved):
    """Return the notes of the restarts of a job that is killed after each number of steps that is
    `saved`.
    """
    run = job.folder / "run"
    (job._start_folder / "run.json").write_text(json.dumps(str(run)))
    (run / "checkpoints").mkdir(parents=True)
    for step in saved:
        (run / "checkpoints" / file_name(step)).touch()
        job._prepare_restart(End(ENVIRONMENT, "killed"))
        yield job.spec.notes[0].partition("(")[2]


def test_restarts_count_since_the_last_saved_progress(started):
    assert [*restarts_until_it_ends(started("pass"), [0, 0, 5, 5, 5, 9])] == [
        f"restart {number} of 3)" for number in (1, 2, 1, 2, 3, 1)
    ]


def test_restarts_without_progress_end(started):
    with lockstep_error(r"^killed\. Continue with: lockstep train .*run --resume$"):
        [*restarts_until_it_ends(started("pass"), [5] * 4)]


def test_the_launcher_raises_a_workers_damaged_file_error(started):
    with pytest.raises(DamagedFileError, match=r"^x is damaged$") as error:
        started("pass")._prepare_restart(End(DATA, "x is damaged", known=True, damaged="x"))
    assert (error.value.path, error.value.code) == (Path("x"), DATA)


def test_what_the_user_must_fix_and_an_evaluation_never_restart(started):
    job = started("pass")
    for job.spec, known in ((SPEC, True), (EVALUATION, False)):
        with lockstep_error("^it failed$", ENVIRONMENT):
            job._prepare_restart(End(ENVIRONMENT, "it failed", known=known))


def test_a_restart_needs_the_init_file_only_without_a_checkpoint(started, tmp_path):
    job = started("pass")
    job.spec = SPEC.replace(placement=SPEC.placement.replace(init=tmp_path / "gone.safetensors"))
    job._prepare_restart(End(ENVIRONMENT, "killed"))
    assert job.spec.placement.init is not None
    assert [*restarts_until_it_ends(job, [0])]
    assert job.spec.placement.init is None
    assert job.spec.resume


def test_a_restart_continues_a_run_whose_folder_was_not_told(started, tmp_path):
    job = started("pass")
    job.spec = SPEC.replace(path=tmp_path / "x")
    job._prepare_restart(End(ENVIRONMENT, "killed"))
    assert not job.spec.resume
    (tmp_path / "x").mkdir()
    (tmp_path / "x/recipe.json").write_text(SPEC.recipe.model_dump_json())
    job._prepare_restart(End(ENVIRONMENT, "killed"))
    assert job.spec.resume


def test_a_relay_works_beside_more_files_than_select_takes():
    with many_open_files():
        stream = io.StringIO()
        relay = Relay(stream)
        os.write(relay.descriptor, b"a line")
        relay.close()
        assert stream.getvalue() == "a line"


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGTERM)
    }
    handler = StopRequest().remember
    with handled_by(handler):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == handler
    for number, handler in before.items():
        signal.signal(number, handler)
