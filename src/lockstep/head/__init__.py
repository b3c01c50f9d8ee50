"""What is known around a trained head: its features, what its answers are worth, and why it gave
them.
"""
