"""The head of a network and what is known around it.

`features.py` computes what the head is trained on, `confidence.py` which of its answers are
confident, `outliers.py` which images are unfamiliar, and `activation.py` which places of an
image gave the answer. `core/backbone.py` divides the network.
"""
