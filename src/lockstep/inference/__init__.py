"""Classifiers: a trained network and its preprocessing, from a run or a file, for images that it has not seen."""
