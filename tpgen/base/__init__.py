"""Errors, text, pictures, caches, locks, clock."""
