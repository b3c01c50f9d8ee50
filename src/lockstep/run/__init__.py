"""One run: its folder, checkpoints and result, and the evaluation of its checkpoints."""
