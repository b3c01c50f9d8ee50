"""Report: one stream of events, and its listeners: console, log.txt, metrics.jsonl and TensorBoard."""
