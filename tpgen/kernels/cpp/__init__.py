"""Write the C++ of CPU kernels."""
