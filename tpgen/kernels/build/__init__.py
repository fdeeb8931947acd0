"""Compile kernel sources, cache libraries, load functions."""
