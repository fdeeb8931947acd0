"""Places of a sweep on one target: what is vectorised, staged, tabulated and kept; tiles, blocks and scratch."""
