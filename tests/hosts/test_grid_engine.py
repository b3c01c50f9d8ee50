"""examples/clusters/grid_engine.sh under the real Grid Engine, on two hosts: a process is killed, the
job is deleted, and the run ends with the weights of one process.

Grid Engine's programs run on the hosts of tests/namespaces.py, with a cell of the test's own. The
script is the printed one with another recipe.
"""

import re
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.documents import ROOT
from tests.helpers import read_json
from tests.hosts.conftest import TRAIN

INSTALLED, TOOLS = Path("/var/lib/gridengine"), Path("/usr/lib/gridengine")  # of Debian
DEFAULTS = Path("/usr/share/gridengine")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(shutil.which(f"/usr/sbin/sge_{name}") for name in ("qmaster", "execd")),
        reason="Grid Engine is not installed: Debian has gridengine-master and -exec",
    ),
]
SECONDS = 240  # for Grid Engine and for a run on two cores
PRINTED = "cifar10 --towers 16 --name big"
BOOTSTRAP = """
admin_user none
default_domain none
ignore_fqdn true
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {0}/spool
binary_path /usr/sbin
qmaster_spool_dir {0}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
SETTINGS = {"min_uid": 0, "min_gid": 0, "load_report_time": "00:00:02"}  # Jobs of root may run.
QUEUE = {"hostlist": "@allhosts", "pe_list": "lockstep", "slots": 2, "load_thresholds": "NONE"}
ENVIRONMENT = {  # a parallel environment
    "pe_name": "lockstep",
    "slots": 4,
    "allocation_rule": 2,
    "control_slaves": "TRUE",
    "job_is_first_task": "FALSE",
    "accounting_summary": "FALSE",
    "urgency_slots": "min",
    "user_lists": "NONE",
    "xuser_lists": "NONE",
    "start_proc_args": "NONE",
    "stop_proc_args": "NONE",
    "qsort_args": "NONE",
}


def changed(text, settings):
    """Return a configuration with other settings."""
    for name, value in settings.items():
        text = re.sub(rf"(?m)^{name} .*", f"{name} {value}", text)
    return text


class GridEngine:
    """Grid Engine on two hosts. `folder` has what it writes, and `work` is where jobs are
    submitted.
    """

    def __init__(self, hosts, folder, work):
        self.hosts, self.folder, self.work = hosts, folder, work
        common = folder / "root/default/common"
        for name in ("root/default/common", "qmaster/job_scripts", "execd", "spool", "h0", "h1"):
            (folder / name).mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (folder / "root" / name).symlink_to(INSTALLED / name)
        (common / "bootstrap").write_text(BOOTSTRAP.format(folder))
        (common / "act_qmaster").write_text("h0\n")
        defaults = (DEFAULTS / "default-configuration").read_text()
        own = changed(defaults, {**SETTINGS, "execd_spool_dir": folder / "execd"})
        self.ask(TOOLS / "spoolinit", "berkeleydb", "libspoolb", folder / "spool", "init")
        self.ask(TOOLS / "spooldefaults", "configuration", self.file(own))
        for name, what in {"complexes": "centry", "usersets": "usersets"}.items():
            self.ask(TOOLS / "spooldefaults", name, DEFAULTS / "util/resources" / what)
        self.ask(TOOLS / "spooldefaults", "managers", "root")
        self.start(0, "sge_qmaster")
        self.until(lambda: self.code("qconf", "-sh") == 0)
        self.ask("qconf", "-ah", "h1")
        for host in range(2):
            self.start(host, "sge_execd")
        self.ask("qconf", "-Ahgrp", self.file("group_name @allhosts\nhostlist h0 h1\n"))
        lines = "".join(f"{name} {value}\n" for name, value in ENVIRONMENT.items())
        self.ask("qconf", "-Ap", self.file(lines))
        # The hosts share their files, and each of them deletes the one folder of a job.
        own = ",".join(f"[h{host}={folder}/h{host}]" for host in range(2))
        queue = changed(
            self.ask("qconf", "-sq"), {"qname": "all.q", "tmpdir": f"/tmp,{own}", **QUEUE}
        )
        self.ask("qconf", "-Aq", self.file(queue))
        self.ask("qconf", "-as", "h0")

    def file(self, text):
        """Return the path of a file with a text."""
        path = self.folder / "told"
        path.write_text(text)
        return path

    def start(self, host, *words):
        settings = {"SGE_ROOT": str(self.folder / "root"), "SGE_CELL": "default", "SGE_ND": "1"}
        settings |= {"SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
        path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin"
        return self.hosts.start(host, *words, cwd=self.work, **settings, PATH=path)

    def code(self, *words):
        """Return the exit code of a program on host 0."""
        program = self.start(0, *words)
        program.communicate(timeout=SECONDS)
        return program.returncode

    def ask(self, *words):
        program = self.start(0, *words)
        printed, errors = program.communicate(timeout=SECONDS)
        assert program.returncode == 0, (words, printed, errors)
        return printed

    def submit(self, script):
        return re.search(r"Your job (\d+)", self.ask("qsub", "-pe", "lockstep", "4", script))[1]

    def until(self, true):
        end = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < end, [log.read_text() for log in self.work.glob("*.log")]
            time.sleep(0.3)

    def until_log(self, job, pattern):
        log = self.work / f"lockstep-{job}.log"
        self.until(lambda: log.exists() and re.search(pattern, log.read_text(), re.S))

    def ended(self, job):
        """Wait for the end of a job."""
        self.until(lambda: self.code("qstat", "-j", job) != 0)


def test_the_script_under_grid_engine(hosts, folders, slow, undisturbed, tmp_path):
    printed = (ROOT / "examples/clusters/grid_engine.sh").read_text()
    assert PRINTED in printed
    script = folders[0] / "grid_engine.sh"
    words = ["'weight_decay={}'" if word == "weight_decay={}" else str(word) for word in TRAIN[1:]]
    script.write_text(printed.replace(PRINTED, " ".join([*words, "--towers", "4"])))
    engine = GridEngine(hosts, tmp_path / "engine", folders[0])

    job = engine.submit(script)
    engine.until_log(job, ": step 7,")
    tasks = [
        process
        for process in map(psutil.Process, hosts.processes(1))
        if "lockstep.launch.worker" in process.cmdline()
    ]
    tasks[0].send_signal(signal.SIGKILL)
    engine.until_log(job, r"attempt 1 ended with exit code \d+.* of them done.*: step \d+,")
    engine.ask("qdel", job)
    engine.until_log(job, "stopped .* saved")
    engine.ended(job)

    slow.unlink()
    job = engine.submit(script)
    engine.until_log(job, " of them done")
    engine.ended(job)
    result = read_json(folders[0] / "runs/x/result.json")
    assert (result["processes"], result["weights_sha256"]) == (4, undisturbed)
