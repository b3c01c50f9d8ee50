"""Benchmarks: one command each; nothing here is a test."""
