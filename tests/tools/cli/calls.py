"""Calls of the command line in this process."""

from click.testing import CliRunner, Result

from tpgen.tools.cli.app import main

VECTORS = ["--in1", "4x1o", "--in2", "1o", "--irreps-out", "4x1e", "--instruction", "0,0,0,uvu,true"]


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="tpgen")
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result
