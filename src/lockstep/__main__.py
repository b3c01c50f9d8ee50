"""`python -m lockstep` is `lockstep`."""

from lockstep.cli import main

main()
