"""`lockstep doctor`: checks of this machine, each in a small function that returns a finding."""
