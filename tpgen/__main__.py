"""``python -m tpgen``: the command line."""

from tpgen.tools.cli.app import main

main()
