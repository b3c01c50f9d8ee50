"""The measurements of `lockstep bench`: `analysis` computes with their records, `peak` measures, `table` shows."""
