"""The command line: argument parsing over the packages, no logic of its own."""

from tpgen.tools.cli.app import main

__all__ = ["main"]
