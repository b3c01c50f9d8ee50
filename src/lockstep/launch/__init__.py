"""Launch: how a job becomes one or several processes, and what happens when one of them stops or
fails.
"""
