"""Functions between linear layers: SiLU, gates, Bessel functions; a kernel for each, and its derivatives beside it."""
