"""The commands of the program, and the functions of Python that do the same."""

import time

STARTED = time.time()  # when the program started: `total_s` of a result counts from here
