"""Torch operators of kernels."""
