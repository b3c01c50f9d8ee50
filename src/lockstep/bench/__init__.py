"""`lockstep bench`: `measure` runs in the processes, `analysis` computes with the records, `table` and `chart` show."""
