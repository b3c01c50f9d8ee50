"""Programs that train the same networks without Lockstep, for comparison. Each file is a
program.
"""
