"""Other systems: macOS has no /proc, no affinity and other names; Windows is refused in a sentence."""

import json
import subprocess
import sys

import pytest

# Libraries are imported first: they ask for the system when they are imported, and know it better than this program.
WITHOUT_LINUX = """
import builtins, io, os, pathlib, sys
import psutil, tensorboard, torch, torch._dynamo, torch.distributed
sys.platform = "darwin"
for name in ("sched_getaffinity", "sched_setaffinity", "posix_fallocate", "pidfd_open", "memfd_create"):
    delattr(os, name)
real = io.open

def opened(path, *rest, **options):
    if str(path).startswith(("/proc", "/sys/")) and "psutil" not in sys._getframe(1).f_globals["__name__"]:
        raise FileNotFoundError(2, "no such file", str(path))
    return real(path, *rest, **options)

io.open = builtins.open = opened
glob = pathlib.Path.glob
pathlib.Path.glob = lambda path, pattern: () if str(path).startswith("/sys/") else glob(path, pattern)
sys.argv = ["lockstep", "train", "digits", "--steps", "3", "--inline", "--name", "elsewhere", "--json"]
from lockstep.commands.program import main
main()
"""


@pytest.mark.slow
def test_training_needs_nothing_that_only_linux_has(tmp_path, trained_once):
    done = subprocess.run([sys.executable, "-c", WITHOUT_LINUX], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    _, here = trained_once("digits", "--steps", 3, "--processes", 1)
    assert record["weights_sha256"] == here["weights_sha256"]


def test_windows_is_refused_in_a_sentence(tmp_path):
    code = "import sys; sys.platform = 'win32'; import lockstep.commands.program"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "does not run on Windows" in done.stderr
    assert "WSL 2" in done.stderr
    assert "Traceback" not in done.stderr
