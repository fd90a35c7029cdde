"""`reelworks demo`: every step from footage to report, on footage that it makes."""

from __future__ import annotations

import typer


def demo() -> None:
    """Make footage, train on it, interrupt, resume, generate and report, in a folder demo/.

    Downloads nothing; takes some minutes on two cores. Prints a summary, and ends with code 1 if the model did not
    learn.
    """
    from reelworks.demo import walkthrough

    raise typer.Exit(walkthrough.main())
