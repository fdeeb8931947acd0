"""Calls of kernels without Python: an operator in C++ over libtorch's stable functions."""
