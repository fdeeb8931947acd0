"""Networks for programs without tpgen: packages with their kernels, and modules of torch's operators alone."""
