"""Whether it is right: the slow definition, and the laws that every product obeys."""
