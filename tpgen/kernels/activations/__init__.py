"""Kernels of activations: one pass over the numbers for a value, a gradient, or the gradients of a gradient."""
