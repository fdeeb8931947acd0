"""Adapters: how modules of known projects come to compute with tpgen.  Each imports its project when it is called."""

import tpgen._e3nn  # noqa: F401
