"""lockstep.train in a real Jupyter kernel: the live line, and the kernel's interrupt."""

import re
import sys

import pytest
from jupyter_client import KernelManager
from tests.conftest import _outside


@pytest.fixture
def kernel(tmp_path):
    """Return (kernel manager, client) of a kernel that runs in the test's folder."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(
        cwd=str(tmp_path), env={**_outside(), "IPYTHONDIR": str(tmp_path / "ipython")}
    )
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def cell(client, code, seen=lambda text: None):
    """Run a cell. Return what it printed, and the status of the reply; `seen` receives what is
    printed so far.
    """
    message = client.execute(code)
    printed = ""
    while True:
        received = client.get_iopub_msg(timeout=120)
        if received["parent_header"].get("msg_id") != message:
            continue
        if received["msg_type"] == "stream":
            printed += received["content"]["text"]
            seen(printed)
        elif received["msg_type"] == "error":
            printed += "\n".join(received["content"]["traceback"])
        elif received["msg_type"] == "status" and received["content"]["execution_state"] == "idle":
            break
    while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != message:
        pass
    return printed, reply["content"]["status"]


@pytest.mark.slow
def test_a_notebook_has_a_live_line_and_its_interrupt_saves(kernel, trained_once):
    manager, client = kernel
    interrupted = []

    def interrupt(printed):
        if not interrupted and re.search(r"step +\d+/300", printed):
            interrupted.append(True)
            manager.interrupt_kernel()

    out, status = cell(client, "import sys, lockstep; print(sys.executable)")
    assert (out, status) == (f"{sys.executable}\n", "ok")
    out, status = cell(
        client, "run = lockstep.train('digits', steps=300, processes=2, name='n'); run", interrupt
    )
    assert status == "ok", out
    assert "\r" in out
    out, status = cell(
        client, "print(run.complete, run.state); run = lockstep.train(run, resume=True)"
    )
    assert status == "ok", out
    assert out.startswith("False stopped\n")
    assert re.search(r"\r.*\d+/300", out)
    assert out.splitlines()[-1].startswith("  next ")
    out, _ = cell(client, "print(run.result()['weights_sha256'])")
    assert (
        out.strip() == trained_once("digits", "--steps", 300, "--processes", 2)[1]["weights_sha256"]
    )
    out, status = cell(client, "def build(shape, classes): ...\nlockstep.train(model=build)")
    assert status == "error"
    assert "put it in a file, for example mynet.py, and give model='mynet:build'" in out
