"""Whole networks as graphs and programs."""
