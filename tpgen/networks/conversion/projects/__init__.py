"""Adapters of known projects, each imported when a network holds such modules."""
