"""Costs of paths against ceilings."""
