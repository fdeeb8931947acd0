"""Einsums and multilinear forms as values, with calls, derivatives and rewrites."""
