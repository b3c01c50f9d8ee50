"""Worker processes: how a command becomes one or several processes, and the signals that stop them."""
