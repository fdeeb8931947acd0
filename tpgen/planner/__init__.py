"""Irreps and instructions become frozen plans."""
