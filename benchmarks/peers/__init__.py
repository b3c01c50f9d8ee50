"""The same training, as other programs do it: what Lockstep is measured against. Each file runs on its own."""
