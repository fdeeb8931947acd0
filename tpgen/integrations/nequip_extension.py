"""What NequIP loads when it is imported (entry point ``nequip.extension``), so that ``enable_tpgen`` is found by name.

A version of NequIP whose modules stand elsewhere must still import: there the modifier is missing, and nothing else.
"""

from contextlib import suppress

with suppress(ImportError):
    import tpgen.integrations.nequip  # noqa: F401
