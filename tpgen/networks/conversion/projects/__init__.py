"""Adapters of known projects."""
