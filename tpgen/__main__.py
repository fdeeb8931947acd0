"""Command line: ``python -m tpgen``."""

from tpgen.tools.cli.app import main

main()
