"""Costs of each path against the machine's ceilings."""
