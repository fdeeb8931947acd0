"""Command groups that correct mistyped names."""

from __future__ import annotations

from typing import Any

import click

from tpgen.base.errors import unknown


class SuggestingGroup(click.Group):
    """Command group that suggests the right word."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(unknown("command", args[0], known))
        return super().resolve_command(ctx, args)
