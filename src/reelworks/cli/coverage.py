"""`reelworks coverage`: what became of every clip."""

from __future__ import annotations

from typing import Annotated

import typer

from reelworks.cli.options import RunArgument


def coverage(
    run: RunArgument,
    never_trained: Annotated[
        bool,
        typer.Option(
            "--never-trained", help="List the clips that no epoch trained, with the reason of each epoch."
        ),
    ] = False,
    clip: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Say what became of this clip: its path, or an end of it from a folder's name on.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON value, with the clips asked for; with all, if none are."),
    ] = False,
) -> None:
    """Say what became of each clip in each epoch so far.

    Prints an account of every epoch, and checks that planned = trained + failed + skipped (+ not yet). All is read
    from the records that training wrote; where they contradict each other, the segment is named and the exit code is 2.
    """
    from reelworks.analysis import clip_history
    from reelworks.cli import show, show_data
    from reelworks.core.errors import UserError
    from reelworks.run.folder import RunFolder

    told = clip_history.cover(RunFolder(run))
    named = never_trained or clip is not None
    places = told.places(never_trained=never_trained, clip=clip) if named or json else []
    if json:
        show.json(told.to_json(places))
    else:
        show_data.coverage(told, places)
    if told.problems:
        more = f", and {len(told.problems) - 1} more" if len(told.problems) > 1 else ""
        raise UserError(
            f"the records contradict each other: {told.problems[0]}{more}",
            code="records-contradict",
            field="RUN",
            value=str(run),
            remedy="bring back coverage/ and events.jsonl from a backup of the run, if somebody changed them; otherwise "
            "report it as a defect, with both",
        )
