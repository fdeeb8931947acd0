"""The algebra: einsums and the multilinear form as values, open slots, rewrites."""
