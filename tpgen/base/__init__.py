"""Errors, text, pictures, caches, locks, clock, and private names of torch and e3nn."""
