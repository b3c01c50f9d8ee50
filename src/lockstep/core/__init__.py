"""The core: one training step, from the towers to the update, and everything that a step is made
of.
"""
