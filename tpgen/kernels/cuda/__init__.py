"""Generated CUDA C++: the same sweeps as on a CPU, placed on blocks, warps and shared memory."""
