"""Kernels of polynomials: one form, any derivative, generated as straight-line code over vectors of channels."""
