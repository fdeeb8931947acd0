"""A tour of tpgen on real networks: plan, dump, check, train, measure."""
