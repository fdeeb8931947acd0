"""Stages: the text of each, and which line serves which instruction."""
