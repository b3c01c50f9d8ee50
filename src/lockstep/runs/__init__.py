"""Runs: the folder of a run on the disk, and nothing else. Nothing here computes or
communicates.
"""
