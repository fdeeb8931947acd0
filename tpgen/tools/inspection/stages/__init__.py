"""Stages: text, and instructions of each line."""
