"""The program `lockstep`, and `python -m lockstep`."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # `python -m` searches the current folder first, so a torch.py there would replace torch.

from lockstep.commands.program import main

if __name__ == "__main__":
    main()
