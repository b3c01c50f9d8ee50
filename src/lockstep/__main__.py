"""`python -m lockstep` is `lockstep`."""

import os
import sys

# `python -m` puts the current folder first: a torch.py there would be imported in torch's place.
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from lockstep.cli import main

main()
