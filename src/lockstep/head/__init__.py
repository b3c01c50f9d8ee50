"""Transfer learning: the head of a network, trained alone on the features of a frozen backbone.

`features.py` computes these features, `confidence.py` tells which answers are confident and which
labels are found, `outliers.py` which images are unfamiliar, and `activation.py` which places
of an image gave the answer. `core/backbone.py` divides the network.
"""
