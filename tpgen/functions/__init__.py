"""Functions between linear layers, with kernels."""
