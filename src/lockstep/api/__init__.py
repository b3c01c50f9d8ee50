"""The Python functions train, evaluate, load and predict, which the command line calls too."""
