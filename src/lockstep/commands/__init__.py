"""The commands of the program, and the functions of Python that do the same."""
