"""Generated kernels: what a form computes as code for a target, compiled, kept, and called by operators of PyTorch."""
