"""Watching, in a thread of a worker process: it ends with the program that started it."""

import os
import shutil
import threading
import time
from pathlib import Path

from lockstep.core.monitor import Monitor
from lockstep.errors import ENVIRONMENT

_TICK_S = 0.2  # seconds between two looks


def end_with_parent(parent: int, monitor: Monitor, folder: Path | None = None) -> None:
    """End this process if its parent, the process id `parent`, ends. Remove the parent's temporary `folder` then.

    So a killed launcher leaves no processes that hold GPUs and files. The thread also lets `monitor` tick.
    """

    def watch() -> None:
        while os.getppid() == parent:
            monitor.tick()
            time.sleep(_TICK_S)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(ENVIRONMENT)

    threading.Thread(target=watch, name="watch", daemon=True).start()
