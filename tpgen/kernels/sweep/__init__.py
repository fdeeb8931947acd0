"""Sweeps: straight-line programs for one row and one channel."""
