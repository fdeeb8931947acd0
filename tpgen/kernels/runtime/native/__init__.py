"""Kernel calls without Python: C++ operators on libtorch's stable functions."""
