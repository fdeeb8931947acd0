"""Whole networks: modules of e3nn and of known projects compute with tpgen's kernels."""
