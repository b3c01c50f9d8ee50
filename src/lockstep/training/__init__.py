"""The training step: the loop, the towers, the state they update, and the evaluation of a state."""
