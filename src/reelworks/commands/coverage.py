"""`reelworks coverage`: account for every clip of every epoch."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from reelworks.commands import show
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import RunArgument
from reelworks.core import units
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from reelworks.training.coverage.coverage import CoverageReport, EpochCoverage

_ACCOUNT = ("trained", "failed", "skipped", "not_yet")


def coverage(
    run: RunArgument,
    never_trained: Annotated[bool, Option("--never-trained")] = False,
    clip: Annotated[str | None, Option(metavar="PATH")] = None,
    json: Annotated[bool, Option("--json")] = False,
) -> None:
    """Report what happened to each clip in each epoch so far.

    Prints the counts of every epoch, and checks that planned = trained + failed + skipped (+ not yet). Everything is
    read from the records that training wrote; if they contradict each other, the segment is named and the exit code is
    2.

    Args:
        never_trained: List the clips that surely no epoch trained, with the reason in each epoch.
        clip: Report on this clip only: its path, or the last parts of its path.
        json: Print one JSON value, with the selected clips; with all, if none are selected.
    """
    from reelworks.data.run.folder import RunFolder
    from reelworks.training.coverage import clip_history

    selected = never_trained or clip is not None
    history = clip_history.cover(RunFolder(run), clip) if selected or json else clip_history.counts(RunFolder(run))
    report = history.report(history.places(never_trained=never_trained, clip=clip) if selected or json else [])
    show.json(report) if json else _print_coverage(report, has_copies=bool(history.copy.any()))
    if never_trained and not json and (unknown := history.maybe_trained()):
        show.line(f"\n{units.plural(unknown, 'clip')} may have been trained, in epochs whose records are missing")
    if history.problems:
        more = f", and {len(history.problems) - 1} more" if len(history.problems) > 1 else ""
        error = UserError(
            f"the records contradict each other: {history.problems[0]}{more}",
            code="records-contradict",
            field="RUN",
            value=str(run),
            remedy="restore coverage/ and events.jsonl from a backup of the run, if they were changed; otherwise report a "
            "defect and attach both",
        )
        if not json:
            raise error
        show.line(f"error: {error}", error=True)  # beside the one value, which has the problems
        raise Exit(ExitCode.BAD_INPUT)


def _print_coverage(report: CoverageReport, *, has_copies: bool) -> None:
    from reelworks.data.run import history

    if not report.epochs:
        show.line("no epoch has begun")
    for epoch in report.epochs:
        show.line(f"epoch {history.epoch_name(epoch.epoch, epoch.data_restarts, epoch.stage)}: {_account(epoch)}")
        others = {label: n for label, n in epoch.counts.items() if label not in _ACCOUNT}
        if others:
            show.line("  not planned: " + ", ".join(f"{n} {label}" for label, n in others.items()))
        for told in (*epoch.lost, *epoch.problems):
            show.line(f"  {told}")
    for clip in report.clips:
        show.line(f"\n{clip.path}" + (f" (copy {clip.copy})" if has_copies else ""))
        for one in clip.epochs:
            became = one.became.replace("_", " ") + (f" (step {one.step})" if one.step is not None else "")
            reason = f": {one.reason}" if one.reason is not None else ""
            show.line(f"  epoch {history.epoch_name(one.epoch, one.data_restarts, one.stage)}: {became}{reason}")


def _account(epoch: EpochCoverage) -> str:
    if epoch.lost:
        return f"{epoch.planned} planned; some clips are unknown, since a record is missing"
    parts = [epoch.counts.get(name, 0) for name in _ACCOUNT]
    text = f"{epoch.planned} planned = {parts[0]} trained + {parts[1]} failed + {parts[2]} skipped"
    text += f" + {parts[3]} not yet" if parts[3] or not epoch.done else ""
    if epoch.pruned is not None:
        when = datetime.fromtimestamp(epoch.pruned).strftime("%Y-%m-%d %H:%M")
        return f"{text}; its record was removed on {when} to stay within coverage.max_disk"
    return text + "; adds up" if epoch.adds_up else text.replace(" = ", " against ", 1) + "; does NOT add up"
