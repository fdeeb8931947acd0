"""Generated C++ and CUDA kernels of forms, as operators of PyTorch."""
