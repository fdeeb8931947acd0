"""Torch operators of kernels and their derivatives."""
