"""`reelworks learning`: what a run has learnt of each clip."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from reelworks.commands import options, show
from reelworks.commands.options import RunArgument
from reelworks.core import units
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.annexes.learning.learning import ClipLearning, LearningReport

_LISTED = 20


def learning(
    run: RunArgument,
    word: Annotated[list[str] | None, Option(help="List the clips with this word; may be given several times.")] = None,
    sort: Annotated[
        Literal["worst", "loss", "trend", "gain", "path"],
        Option(
            help="Order: what to look at first, highest loss, least fall of the loss, least gain by the caption, or name."
        ),
    ] = "worst",
    limit: Annotated[int | None, Option(min=1, metavar="N", help=f"List N clips at most (default {_LISTED}).")] = None,
    exclude_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Append the clips with the given words, or the first N of them, to this list of clips not to train, "
            "which a recipe names as exclude_file.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Tell what a run has learnt of each clip, in a word where its losses show that, by those that train.clip_losses notes.

    "not_learnt": its loss is far above that of its peers, the clips of its bucket: look at it. "caption_without_effect":
    its caption raises its loss, while those of its peers lower it, as a wrong one does. "memorised": its loss is far below, and fell far
    more. Each is said so late that in 99 of 100 sets of usual clips it is said of none; what is nearer has a rank, and the
    first ten are to be looked at first. "still_learning", "learnt": nothing is sure. "too_early": it was trained less than four times.
    All of it is of the newest checkpoint.
    """
    from reelworks.annexes.learning.learning import Learning
    from reelworks.data.loader import exclude_file as excluding
    from reelworks.data.run.folder import RunFolder

    if exclude_file is not None and not word:
        raise UserError(
            "without a word, all clips would be left out",
            code="selection-missing",
            field="--exclude-file",
            value=str(exclude_file),
            remedy="add --word not_learnt, or another word",
        )
    known = Learning.of_run(RunFolder(run))
    places = known.places(sort, word or ())
    listed = places[: limit if limit is not None or json else _LISTED]
    has_ranks = not word and sort == "worst" and limit is None and not json
    if has_ranks:
        places, ranked = known.to_look_at()
        listed = places[:_LISTED]
    if exclude_file is not None:
        names = known.names(places[:limit])
        new = excluding.append(exclude_file, list(filter(excluding.is_listable, names)), field="--exclude-file")
        text = f"{units.plural(new, 'clip')} added to {exclude_file}; a recipe names it as exclude_file"
        show.line(text, error=json)
        for name in itertools.filterfalse(excluding.is_listable, names):
            show.line(f"warning: a line of a list cannot name {name!r}; {excluding.RENAME}", error=json)
    report = known.report(listed)
    show.json(report) if json else _print(report, len(places))
    if has_ranks and len(ranked):
        show.line(
            "look at these first, by their most unusual number as a share of where a word is said; no word is sure of them"
        )
        _print_clips("unusual", known.clips(ranked))


def _print(report: LearningReport, selected: int) -> None:
    counts = ", ".join(f"{n} {label.replace('_', ' ')}" for label, n in report.counts.items())
    show.line(f"step {report.step}: {counts or 'no clip was trained'}")
    if report.measured:
        took = report.share_of_time
        share = "" if took is None else f", in {units.percent(took)} of the time of the steps"
        show.line(f"{units.plural(report.measured, 'clip')} measured with fixed noise{share}")
    if report.below_held_out:
        below = units.percent(report.below_held_out)
        show.line(f"{below} of the trained clips have a lower loss than any held-out one")
    if report.clips:
        _print_clips("word", report.clips)
    if selected > len(report.clips):
        show.line(f"{units.count(selected - len(report.clips))} more; --limit lists them")


def _print_clips(reason: str, clips: list[ClipLearning]) -> None:
    rows = []
    for clip in clips:
        why = clip.word if reason == "word" else f"{clip.unusual} {100 * clip.unusual_share:.0f} %"
        gain = "–" if clip.gain is None else f"{100 * clip.gain:+.0f} %"
        numbers = f"{clip.loss:.2f} ×", f"{clip.trend:.2f} ×", f"{100 * clip.rank:.0f} %", gain, clip.shown
        rows.append((clip.path, why.replace("_", " "), *numbers))
    show.table(("clip", reason, "loss", "trend", "rank", "gain", "shown"), rows)
