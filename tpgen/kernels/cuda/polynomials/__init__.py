"""Kernels of polynomials on a GPU: placement, text, prediction, launch."""
