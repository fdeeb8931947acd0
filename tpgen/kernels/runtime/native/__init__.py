"""Kernel calls without Python: a C++ operator over libtorch's stable functions."""
