"""Loaded by NequIP when it is imported (entry point ``nequip.extension``), which finds ``enable_tpgen`` by name then.

A version of NequIP whose modules stand elsewhere must still import, and so must NequIP without Allegro: there the
modifier is missing, and nothing else.
"""

from contextlib import suppress
from importlib import import_module

for adapter in ("nequip", "allegro"):
    with suppress(ImportError):
        import_module(f"tpgen.conversion.projects.{adapter}")
