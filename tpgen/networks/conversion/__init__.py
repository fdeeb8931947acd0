"""Modules of whole networks compute with tpgen."""
