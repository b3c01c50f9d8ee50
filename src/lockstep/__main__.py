"""The program `lockstep`, and `python -m lockstep`."""

import os
import signal
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # `python -m` searches the current folder first, so a torch.py there would replace torch.


def main() -> None:
    """Run the program. Ctrl-C while its modules are imported ends it without a traceback, as it ends other programs."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lockstep.commands import program

    signal.signal(signal.SIGINT, interrupt)
    program.main()


if __name__ == "__main__":
    main()
