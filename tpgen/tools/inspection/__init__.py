"""Inspection: stages, costs, compile reports."""
