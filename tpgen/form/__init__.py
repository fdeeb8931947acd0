"""Einsums and multilinear forms: values, derivatives, rewrites."""
