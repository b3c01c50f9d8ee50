"""Reports: everything that shows or records a run listens to the same events (log.py)."""
