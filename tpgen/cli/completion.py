"""``tpgen completion``: a script that completes commands, options and names without starting Python."""

from __future__ import annotations

import click

from tpgen.cli.types import OneOf

_HEADS = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}
_SCRIPT = """\
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


@click.command()
@click.argument("shell", metavar="bash|zsh", type=OneOf("shell", _HEADS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of your shell.

    Write it into a file that your shell reads when it starts; docs/cli.md has the line.  It knows the problems,
    networks and stages of this version, so write it anew after an update.
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    click.echo(_HEADS[shell] + script(known_words(root.command, root)), nl=False)


def script(words: dict[str, tuple[str, ...]]) -> str:
    """The script, in the words that bash and zsh share.

    >>> 'plan) words="article" ;;' in script({"": ("plan",), "plan": ("article",)})
    True
    """
    commands = {place: found for place, found in words.items() if not place.split(" ")[-1].startswith("-")}
    options = {place: found for place, found in words.items() if place not in commands}
    return _SCRIPT.format(
        commands="|".join(f'"{place}"' for place in commands if place),
        options="\n".join(f'    "{place}") words="{" ".join(found)}" ;;' for place, found in options.items()),
        words="\n".join(f'      {_quoted(place)}) words="{" ".join(found)}" ;;' for place, found in commands.items()),
    )


def _quoted(place: str) -> str:
    return place if place.isalnum() else f'"{place}"'


def known_words(command: click.Command, ctx: click.Context, place: str = "") -> dict[str, tuple[str, ...]]:
    """What may stand behind each command, and behind each of its options that takes a value."""
    if isinstance(command, click.Group):
        below = {name: found for name in command.list_commands(ctx) if (found := command.get_command(ctx, name))}
        words = {place: tuple(below)}
        for name, found in below.items():
            words |= known_words(found, ctx, f"{place} {name}".strip())
        return words
    names = [name for p in command.params if isinstance(p, click.Argument) for name in _choices(p)]
    options = [p for p in command.params if isinstance(p, click.Option)]
    words = {place: (*names, *(flag for option in options for flag in (*option.opts, *option.secondary_opts)))}
    return words | {f"{place} {flag}": _choices(o) for o in options if not o.is_flag for flag in o.opts}


def _choices(parameter: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, parameter.type.choices)) if isinstance(parameter.type, click.Choice) else ()
