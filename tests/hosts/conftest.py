"""Hosts for the tests in this folder, and what they start on them."""

import sys

import pytest
from tests.namespaces import Hosts, reason

REASON = reason()


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
