"""Generated kernels of forms: C++ and CUDA text, compilation, cache, and operators of PyTorch."""
