"""examples/clusters/slurm.sbatch under the real Slurm, on two hosts: a task is killed, the job is
told to stop, a host dies, and the run ends with the weights of one process.

Slurm's programs run on the hosts of tests/namespaces.py, with a configuration and a key of the
test's own. The script is the printed one with another recipe.
"""

import os
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

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:{SBIN}")]
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: {MISSING}"),
]
SECONDS = 240  # for Slurm and for a run on two cores
PRINTED = "cifar10 --towers 16 --name big"
CONFIGURATION = """
ClusterName=hosts
SlurmctldHost=h0({first})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=10
SlurmctldDebug=error
SlurmdDebug=error
ReturnToService=2
NodeName=h0 NodeAddr={first} CPUs=2
NodeName=h1 NodeAddr={second} CPUs=2
PartitionName=all Nodes=h0,h1 Default=YES State=UP
"""


class Slurm:
    """Slurm on two hosts. `folder` has what it writes, and `work` is where jobs are submitted."""

    def __init__(self, hosts, folder, work):
        self.hosts, self.folder, self.work = hosts, folder, work
        first, second = hosts.addresses
        for part in ("state", "h0", "h1"):
            (folder / part).mkdir(parents=True)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        text = CONFIGURATION.format(first=first, second=second, folder=folder)
        (folder / "slurm.conf").write_text(text)
        # a network namespace does not show the mounts that the default looks for
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        own = ("socket", "pid-file", "log-file", "seed-file")
        files = [f"--{option}={folder}/munge.{option}" for option in own]
        self.start(0, "munged", "--foreground", "--force", f"--key-file={folder}/key", *files)
        self.until(lambda: (folder / "munge.socket").exists())
        self.start(0, "slurmctld", "-D", "-c")
        for host in range(2):
            self.begin(host)

    def start(self, host, *words):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:{SBIN}"
        settings = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}
        return self.hosts.start(host, *words, cwd=self.work, **settings)

    def begin(self, host):
        """Start Slurm's program of one host."""
        self.start(host, "slurmd", "-D", "-N", f"h{host}")

    def ask(self, *words):
        program = self.start(0, *words)
        printed, errors = program.communicate(timeout=SECONDS)
        assert program.returncode == 0, errors
        return printed

    def submit(self, script):
        return re.search(r"batch job (\d+)", self.ask("sbatch", "--ntasks-per-node=2", script))[1]

    def field(self, job, name):
        return re.search(rf"\b{name}=(\S+)", self.ask("scontrol", "show", "job", job))[1]

    def until(self, true):
        end = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < end, [log.read_text() for log in self.work.glob("*.log")]
            time.sleep(0.3)

    def until_log(self, job, pattern):
        log = self.work / f"lockstep-{job}.log"
        self.until(lambda: log.exists() and re.search(pattern, log.read_text(), re.S))

    def ended(self, job):
        """Wait for the end of a job. Return its exit code."""
        self.until(lambda: self.field(job, "JobState") in {"COMPLETED", "FAILED", "CANCELLED"})
        return self.field(job, "ExitCode")


def test_the_batch_script_under_slurm(hosts, folders, slow, undisturbed, tmp_path):
    printed = (ROOT / "examples/clusters/slurm.sbatch").read_text()
    assert PRINTED in printed
    script = folders[0] / "slurm.sbatch"
    words = ["'weight_decay={}'" if word == "weight_decay={}" else str(word) for word in TRAIN[1:]]
    script.write_text(printed.replace(PRINTED, " ".join([*words, "--towers", "4"])))
    slurm = Slurm(hosts, tmp_path / "slurm", folders[0])

    job = slurm.submit(script)
    slurm.until_log(job, ": step 7,")
    tasks = [
        process
        for process in map(psutil.Process, hosts.processes(1))
        if "lockstep" in " ".join(process.cmdline()) and process.name() != "slurmstepd"
    ]
    tasks[0].send_signal(signal.SIGKILL)
    slurm.until_log(job, r"attempt 1 ended with exit code \d+.* of them done.*: step \d+,")
    slurm.ask("scancel", "--signal=TERM", job)  # as Slurm does a minute before the time limit
    assert slurm.ended(job) == "143:0"
    slurm.until_log(job, "stopped .* saved")

    job = slurm.submit(script)
    slurm.until_log(job, r" of them done.*: step \d+,")
    hosts.kill(1)
    slurm.until(lambda: slurm.field(job, "JobState") == "PENDING")  # --requeue
    slow.unlink()
    hosts.connect(1)
    slurm.begin(1)
    assert slurm.ended(job) == "0:0"
    assert int(slurm.field(job, "Restarts")) == 1
    result = read_json(folders[0] / "runs/x/result.json")
    assert (result["processes"], result["weights_sha256"]) == (4, undisturbed)
