"""Kernel calls without Python."""
