"""A tour of tpgen on real networks."""
