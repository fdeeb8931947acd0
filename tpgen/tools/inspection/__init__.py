"""Inspection of modules and plans: stages, costs, compile reports."""
