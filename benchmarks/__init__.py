"""Benchmarks, one program each: `python -m benchmarks.NAME`. None of them is a test."""
