"""A number that a network of another file reads."""

SCALE = 2.0
