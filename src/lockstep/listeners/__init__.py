"""Listeners: the observers of a run that report it: console, log.txt, metrics.jsonl,
TensorBoard and trackers such as MLflow.
"""
