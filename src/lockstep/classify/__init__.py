"""Classifiers: a trained network and its preprocessing, for pictures that it has not seen; a page
for them; export.
"""
