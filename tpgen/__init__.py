"""tpgen generates the code of equivariant tensor products for PyTorch."""
