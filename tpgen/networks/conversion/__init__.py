"""Whole networks: e3nn's modules, and those of known projects, compute with tpgen's kernels and stay what they are."""
