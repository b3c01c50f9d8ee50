"""The standard streams of a program that may have been started without some of them."""

import os
import sys


def reserve() -> None:
    """Open /dev/null as each of stdin, stdout and stderr that is closed, as after `>&-`.

    Otherwise the next file that is opened gets its descriptor, and whatever is printed ends up in that file.
    Call this before anything opens a file.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  it stays open
