"""What NequIP loads when it is imported (entry point ``nequip.extension``), so that ``enable_tpgen`` is found by name.

A version of NequIP whose modules stand elsewhere must still import, and so must NequIP without Allegro: there the
modifier is missing, and nothing else.
"""

from contextlib import suppress
from importlib import import_module

for adapter in ("nequip", "allegro"):
    with suppress(ImportError):
        import_module(f"tpgen.integrations.{adapter}")
