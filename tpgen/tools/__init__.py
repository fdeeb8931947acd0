"""Tools for people: inspection, verification, benchmarks, the demonstration and the command line."""
