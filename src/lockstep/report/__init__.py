"""Listeners: the console, log.txt, metrics.jsonl, TensorBoard and the record of evaluations."""
