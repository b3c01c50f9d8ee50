"""Run the `lockstep` program as `python -m lockstep`."""

import os
import sys

# `python -m` searches the current folder first, so a torch.py there would replace torch.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from lockstep.cli import main

main()
