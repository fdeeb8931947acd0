"""Placements of sweeps on a target."""
