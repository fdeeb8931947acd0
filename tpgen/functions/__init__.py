"""Functions between linear layers, each with a kernel for values and derivatives: SiLU, gates, Bessel bases."""
