"""`reelworks coverage`: account for every clip of every epoch."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from reelworks.cli import show, show_data
from reelworks.cli.options import RunArgument
from reelworks.core.errors import UserError


def coverage(
    run: RunArgument,
    never_trained: Annotated[
        bool, Option("--never-trained", help="List the clips that no epoch trained, with the reason in each epoch.")
    ] = False,
    clip: Annotated[
        str | None, Option(metavar="PATH", help="Report on this clip only: its path, or the last parts of its path.")
    ] = None,
    json: Annotated[
        bool, Option("--json", help="Print one JSON value, with the selected clips; with all, if none are selected.")
    ] = False,
) -> None:
    """Report what happened to each clip in each epoch so far.

    Prints the counts of every epoch, and checks that planned = trained + failed + skipped (+ not yet). Everything is
    read from the records that training wrote; if they contradict each other, the segment is named and the exit code is
    2.
    """
    from reelworks.analysis import clip_history
    from reelworks.run.folder import RunFolder

    history = clip_history.cover(RunFolder(run))
    selected = never_trained or clip is not None
    places = history.places(never_trained=never_trained, clip=clip) if selected or json else []
    show.json(history.to_json(places)) if json else show_data.coverage(history, places)
    if history.problems:
        more = f", and {len(history.problems) - 1} more" if len(history.problems) > 1 else ""
        raise UserError(
            f"the records contradict each other: {history.problems[0]}{more}",
            code="records-contradict",
            field="RUN",
            value=str(run),
            remedy="restore coverage/ and events.jsonl from a backup of the run, if they were changed; otherwise report a "
            "defect and attach both",
        )
