"""Generated CUDA C++ kernels."""
