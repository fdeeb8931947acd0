"""Tests of `tpgen.kernels.cuda`, which need no GPU."""
