"""Inspection, verification, benchmarks, demonstration and command line."""
