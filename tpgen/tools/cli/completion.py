"""``tpgen completion``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import click

from tpgen.tools.cli.types import OneOf

_BASH = """\
_tpgen() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words="" n
  for ((n = 1; n < COMP_CWORD; n++)); do
    case "${{command:+$command }}${{COMP_WORDS[n]}}" in
      {commands}) command="${{command:+$command }}${{COMP_WORDS[n]}}" ;;
    esac
  done
  case "$command $before" in
{options}
    *) case "$command" in
{words}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _tpgen tpgen
"""
_FISH = """\
function _tpgen
  set -l typed (commandline -opc)
  set -l command ""
  for word in $typed[2..]
    switch (string trim -- "$command $word")
      case {commands}
        set command (string trim -- "$command $word")
    end
  end
  set -l words
  switch "$command $typed[-1]"
{options}
    case "*"
      switch "$command"
{words}
      end
  end
  if set -q words[1]
    printf "%s\\n" $words
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c tpgen -f -a "(_tpgen)"
"""


@dataclass(frozen=True)
class _CompletionTemplates:
    text: str
    between: str
    option: str
    command: str


_BASH_SHELL = _CompletionTemplates(
    _BASH, "|", '    "{place}") words="{words}" ;;', '      "{place}") words="{words}" ;;'
)
_SHELLS = {
    "bash": _BASH_SHELL,
    "zsh": replace(_BASH_SHELL, text="autoload -U +X bashcompinit && bashcompinit\n" + _BASH),
    "fish": _CompletionTemplates(
        _FISH, " ", '    case "{place}"\n      set words {words}', '        case "{place}"\n          set words {words}'
    ),
}


@click.command("completion")
@click.argument("shell", metavar="|".join(_SHELLS), type=OneOf("shell", _SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of your shell.

    Write the script into a file that your shell reads at start (docs/cli.md), anew after an update.
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    click.echo(write_completion_script(shell, list_completion_words(root.command, root)), nl=False)


def write_completion_script(shell: str, words: dict[str, tuple[str, ...]]) -> str:
    """A shell's completion script for ``words`` by command or option.

    >>> 'plan") words="article" ;;' in write_completion_script("bash", {"": ("plan",), "plan": ("article",)})
    True
    """
    known = _SHELLS[shell]
    commands = {place: found for place, found in words.items() if not place.split(" ")[-1].startswith("-")}
    options = {place: found for place, found in words.items() if place not in commands}
    return known.text.format(
        commands=known.between.join(f'"{place}"' for place in commands if place),
        options=_write_shell_cases(known.option, options),
        words=_write_shell_cases(known.command, commands),
    )


def _write_shell_cases(case: str, words: dict[str, tuple[str, ...]]) -> str:
    return "\n".join(case.format(place=place, words=" ".join(found)) for place, found in words.items())


def list_completion_words(
    command: click.Command, ctx: click.Context, command_path: str = ""
) -> dict[str, tuple[str, ...]]:
    """Words that may follow, by command and option."""
    if isinstance(command, click.Group):
        below = {name: found for name in command.list_commands(ctx) if (found := command.get_command(ctx, name))}
        words = {command_path: tuple(below)}
        for name, found in below.items():
            words |= list_completion_words(found, ctx, f"{command_path} {name}".strip())
        return words
    names = [name for p in command.params if isinstance(p, click.Argument) for name in _list_choices_of_parameter(p)]
    options = [p for p in command.params if isinstance(p, click.Option)]
    words = {command_path: (*names, *(flag for option in options for flag in (*option.opts, *option.secondary_opts)))}
    return words | {
        f"{command_path} {flag}": _list_choices_of_parameter(o) for o in options if not o.is_flag for flag in o.opts
    }


def _list_choices_of_parameter(parameter: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, parameter.type.choices)) if isinstance(parameter.type, click.Choice) else ()
