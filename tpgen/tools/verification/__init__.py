"""Laws of modules."""
