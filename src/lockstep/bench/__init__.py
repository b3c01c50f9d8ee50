"""What `lockstep bench` measures, and what it makes of it. `measure` runs in the processes; the rest is arithmetic."""
