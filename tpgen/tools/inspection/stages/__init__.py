"""Stages: texts, and origins of lines."""
