"""Adapters: how modules of known projects come to compute with tpgen.  Each imports its project when it is called."""
