"""Generated CUDA C++: the sweeps of the CPU kernels, placed on blocks, warps and shared memory."""
