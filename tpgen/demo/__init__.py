"""A tour of tpgen on real networks: plan, dump, check, train, measure."""

import tpgen._e3nn  # noqa: F401
