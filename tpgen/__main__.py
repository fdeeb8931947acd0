"""``python -m tpgen``: the command line."""

from tpgen.cli.app import main

main()
