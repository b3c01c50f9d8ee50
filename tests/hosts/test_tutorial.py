"""The tutorial on two hosts, as it is printed."""

import os
import re
import signal
import sys
import time
from pathlib import Path

from tests.documents import ROOT, blocks

PAGE = ROOT / "docs/tutorials/two-hosts.md"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def test_the_tutorial_on_two_hosts_runs_as_printed(hosts, tmp_path):
    """Each command on the host that its comment names, the first one on h0. The commands of a block
    run together.
    """
    page = PAGE.read_text()
    (sha256,) = set(re.findall(r"[0-9a-f]{64}", page))
    ended = []
    for section in page.split("\n## ")[1:]:
        block = next(each for each in blocks(section) if each.language == "sh")
        programs = []
        for line in block.text.splitlines():
            command, _, host = line.partition("    # on h")
            number = int(host or 0)
            programs.append(
                hosts.start(number, "sh", "-c", command, cwd=tmp_path / f"h{number}", PATH=PATH)
            )
        if "`kill -9`" in section:
            log = tmp_path / "h0/runs/killed/log.txt"
            while not (log.exists() and re.search(": step [7-9]0,", log.read_text())):
                assert programs[0].poll() is None
                time.sleep(0.05)
            for process in hosts.processes(1):
                os.kill(process, signal.SIGKILL)
        out, err = programs[0].communicate(timeout=240)
        ended.append((programs[0].returncode, sha256 in out, "lost the other processes" in err))
        assert "Traceback" not in err
        assert "  hosts    2; each step exchanges 0.2 MiB" in out or "--name two" not in block.text
    assert ended == [(0, True, False), (0, True, False), (4, False, True), (0, True, False)]
