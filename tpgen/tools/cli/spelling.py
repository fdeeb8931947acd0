"""Command groups that correct mistyped names."""

from __future__ import annotations

from typing import Any

import click

from tpgen.base.errors import unknown


class SuggestingGroup(click.Group):
    """Click group that corrects mistyped commands."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command; suggest another if unknown."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(unknown("command", args[0], known))
        return super().resolve_command(ctx, args)
