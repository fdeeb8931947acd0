"""Networks for use without tpgen: packages with kernels, and modules of PyTorch operators only."""
