"""Settings: the recipe (what decides the bits), the placement (where a run computes), and how users
change them.
"""
