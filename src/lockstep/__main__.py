"""The program `lockstep`, and `python -m lockstep`."""

import os
import sys

if (
    __name__ == "__main__"
    and not sys.flags.safe_path
    and sys.path
    and sys.path[0] in ("", os.getcwd())
):
    # `python -m` searches the current folder first, so a torch.py there would replace torch.
    del sys.path[0]

from lockstep.launch.signals import ending_program


def main() -> None:
    """Run the program. It handles signals before it imports anything else, which takes a while."""
    with ending_program():
        from lockstep.commands.program import main as run

        run()


if __name__ == "__main__":
    main()
