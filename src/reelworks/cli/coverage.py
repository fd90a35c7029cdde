"""`reelworks coverage`: what became of every clip."""

from __future__ import annotations

from typing import Annotated

import typer

from reelworks.cli.options import Json, RunArgument


def coverage(
    run: RunArgument,
    never_trained: Annotated[
        bool, typer.Option("--never-trained", help="List the clips that no epoch trained.")
    ] = False,
    clip: Annotated[str | None, typer.Option(metavar="PATH", help="Say what became of this clip.")] = None,
    json: Json = False,
) -> None:
    """Say what became of each clip in each epoch so far.

    Prints an account of every epoch; names clips where asked to, all of them with --json. All is read from the
    records that training wrote; the exit code is 2 where they contradict each other.
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
            field="RUN",
            value=str(run),
            remedy="bring back coverage/ and events.jsonl from a backup of the run, if somebody changed them; otherwise "
            "report it as a defect, with both",
        )
