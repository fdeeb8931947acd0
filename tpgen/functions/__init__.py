"""Functions between linear layers, with kernels: SiLU, gates, Bessel bases."""
