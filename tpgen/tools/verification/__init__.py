"""Laws that a module must obey."""
