"""Jobs: what the processes of one command compute. Each file reads from top to bottom."""
