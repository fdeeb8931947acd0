"""Benchmarks of named problems."""
