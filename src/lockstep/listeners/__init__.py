"""Listeners: one stream of events, and what receives them: console, log.txt, metrics.jsonl and
TensorBoard.
"""
