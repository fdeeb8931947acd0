"""Sweeps: the straight-line program of one row and one channel that a kernel runs."""
