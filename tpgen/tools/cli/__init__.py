"""The command line."""

from tpgen.tools.cli.app import main

__all__ = ["main"]
