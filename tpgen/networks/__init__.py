"""Programs of whole networks: written down as graphs, put together, shared, inverted."""
