"""Fast CPU kernels: each is a plain function, and `reference.py` states the same function in torch's operators."""
