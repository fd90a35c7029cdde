"""Groups of commands, none of which is silent for long."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import typer
from typer.core import TyperCommand


class App(typer.Typer):
    """A group of commands, each of which says what it is doing."""

    def command(  # type: ignore[override]
        self, name: str | None = None, *, doing: str | None, answers: bool = True, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command.

        `doing` is said on the terminal while the command has nothing else to say; None for commands that last, and speak by
        themselves. Lines of the log go to stderr if the command `answers` on stdout, and with --json only warnings do.
        """

        class Speaking(TyperCommand):
            def invoke(self, ctx: Any) -> Any:
                from reelworks.core import log

                is_main, quiet = os.environ.get("RANK", "0") == "0", bool(ctx.params.get("json"))
                stage = nullcontext() if doing is None else log.stage(doing)
                with log.to_terminal(speaks=is_main, stderr=answers or quiet, quiet=quiet), stage:
                    return super().invoke(ctx)

        return super().command(name, cls=Speaking, **options)
