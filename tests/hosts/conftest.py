"""Hosts for the tests in this folder, and what they start on them."""

import sys

import pytest
from tests.disturbed import write_model
from tests.namespaces import Hosts, reason

REASON = reason()
STEPS = 60  # of the runs that tests disturb
TRAIN = (
    "train",
    "digits",
    "--model",
    "slow:build",
    "--set",
    "weight_decay={}",
    "--steps",
    STEPS,
    "--name",
    "x",
    "--log-every",
    1,
    "--save-every",
    5,
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "hosts":
            item.add_marker(pytest.mark.slow)
            if REASON is not None:
                item.add_marker(
                    pytest.mark.skip(reason=f"no network namespaces as hosts: {REASON}")
                )


@pytest.fixture
def hosts(request):
    """Two hosts on one network, or as many as the test asks for."""
    with Hosts(getattr(request, "param", 2)) as made:
        yield made


@pytest.fixture
def torchrun(hosts):
    """torchrun(host, *arguments, cwd) starts torchrun with two processes on a host, or with one on
    one core. Host `store` has the rendezvous.
    """

    def start(host, *arguments, cwd, nnodes="2", store=0, max_restarts=0, processes=2):
        return hosts.start(
            host,
            *("taskset", "1") * (processes == 1),
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            nnodes,
            "--nproc-per-node",
            processes,
            "--rdzv-backend",
            "c10d",
            "--rdzv-id",
            "x",
            "--rdzv-endpoint",
            f"{hosts.addresses[store]}:29500",
            "--rdzv-conf",
            f"is_host={int(host == store)},last_call_timeout=1",
            "--local-addr",
            hosts.addresses[host],
            "--max-restarts",
            max_restarts,
            "-m",
            "lockstep",
            *arguments,
            cwd=cwd,
            # Else a host that joins later waits for an address that was published in an earlier
            # round only.
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE=str(int(nnodes != "2")),
        )

    return start


@pytest.fixture
def agent(hosts, tmp_path):
    """A stand-in for ssh: it starts the program of Open MPI or MPICH for host 1 in its
    namespace.
    """
    path = tmp_path / "agent"
    path.write_text(
        '#!/bin/bash\n[ "$1" = -x ] && shift\n'
        f"[ $1 = h1 ] || exit 1\nshift\nexec ip netns exec {hosts.names[1]} unshare "
        '--uts bash -c \'hostname h1 && exec bash -c "$*"\' bash "$@"\n'
    )
    path.chmod(0o755)
    return path


def of_mpich(agent, variables, hosts="h0,h1"):
    """Return the words that start two processes on each host."""
    count = 2 * len(hosts.split(","))
    words = ["-n", count, "-ppn", 2, "-hosts", hosts, "-launcher", "ssh", "-launcher-exec", agent]
    words += [word for pair in variables.items() for word in ("-genv", *pair)]
    return ["mpiexec.hydra", *words]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A file. While it exists, each tower takes 0.3 s, so that a run does not end before its
    faults.
    """
    monkeypatch.setenv("SLOW", str(tmp_path / "slow"))
    (tmp_path / "slow").touch()
    return tmp_path / "slow"


@pytest.fixture
def folders(tmp_path, slow):
    """One folder for each host, with the model."""
    made = [tmp_path / "h0", tmp_path / "h1"]
    for folder in made:
        folder.mkdir()
        write_model(
            folder,
            "slow",
            "self.training and pathlib.Path(os.environ['SLOW']).exists()",
            "time.sleep(0.3)",
        )
    return made


@pytest.fixture
def undisturbed(trained_once):
    """The sha256 of the run on one process. The model computes what `digits` does."""
    return trained_once("--set", "weight_decay={}", "--steps", STEPS, "--processes", 1)[1][
        "weights_sha256"
    ]
