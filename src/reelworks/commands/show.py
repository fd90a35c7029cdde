"""Terminal output that several commands share: lines, JSON, tables and the progress of a scan."""

from __future__ import annotations

import datetime
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

from reelworks.core import terminal

if TYPE_CHECKING:
    from rich.table import Table

    from reelworks.data.catalog.scan.scan import ScanProgress
    from reelworks.data.catalog.store.summary import Histogram, Summary


line = terminal.say


def json(value: Any) -> None:
    """Print one JSON value and nothing else."""
    from reelworks.core import files, results

    terminal.say_json(files.to_json(results.as_json(value), indent=2))


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows below headings; all columns but the first one are aligned to the right.

    Columns that the terminal has no room for follow in further tables, with the first one again. Texts that are too long for
    the terminal are folded instead.
    """
    from rich.measure import Measurement

    def fits(*columns: Sequence[str]) -> bool:
        measured = Measurement.get(console, console.options.update(width=1000), _drawn(first, *columns))
        return measured.maximum <= console.width

    shown = ([str(cell).replace("\n", "␊") for cell in row] for row in rows)  # of a name: a row is one line
    console, (first, *others) = terminal.console(), list(zip(headings, *shown, strict=True))
    if not all(map(fits, others)):
        console.print(_drawn(first, *others, folds=True))
        return
    part: list[Sequence[str]] = []
    for column in others:
        if part and not fits(*part, column):
            console.print(_drawn(first, *part))
            part = []
        part.append(column)
    console.print(_drawn(first, *part))


def _drawn(*columns: Sequence[str], folds: bool = False) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading, *_ in columns:
        made.add_column(heading, justify="right" if made.columns else "left", no_wrap=not folds, overflow="fold")
    for cells in zip(*(cells for _, *cells in columns), strict=True):
        made.add_row(*cells)
    return made


_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def stdout_for_json(json: bool) -> Iterator[None]:
    """Send to stderr what libraries print, such as that a process died, if stdout is for one JSON value."""
    with redirect_stdout(sys.stderr) if json else nullcontext():
        yield


@contextmanager
def loading() -> Iterator[None]:
    """Import the libraries of networks, which takes seconds, and say so."""
    from reelworks.core import log, optional_imports

    with log.stage("loading the libraries", at_once=True), optional_imports.importing():
        yield


@contextmanager
def progress(quiet: bool = False, *, stderr: bool = False) -> Iterator[Callable[[str, str, int, int], None]]:
    """Show what is done, to what, and how many are done of how many: a bar on a terminal, else a line every ten seconds on stderr."""
    from rich import progress as parts

    console = terminal.console(stderr=stderr)
    counts = parts.BarColumn(), parts.MofNCompleteColumn(), parts.TimeRemainingColumn()
    columns = parts.TextColumn("{task.description}"), *counts
    bar = parts.Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    task, doing, first = bar.add_task("", total=None), "", 0
    began = latest = time.monotonic()

    def report(does: str, things: str, done: int, total: int) -> None:
        nonlocal doing, first, began, latest
        bar.start()
        bar.update(task, description=does, total=total, completed=done)
        if done >= total:
            bar.stop()
        now = time.monotonic()
        if does != doing:  # the speed is that without the start of workers, and the loading of encoders
            doing, first, began = does, done, now
        elif not (quiet or console.is_terminal) and now - latest >= _SECONDS_BETWEEN_LINES:
            latest, rest = now, ""
            if rate := (done - first) / (now - began):
                left = datetime.timedelta(seconds=round((total - done) / rate))
                rest = f", {rate:.{0 if rate >= 10 else 1}f} {things}/s, {left} left"
            terminal.say(f"{does}: {done} of {total} {things}{rest}", error=True)

    try:
        yield report
    finally:
        bar.stop()


@contextmanager
def scan_progress(quiet: bool = False) -> Iterator[Callable[[ScanProgress], None]]:
    """Show the progress of a scan."""
    with progress(quiet) as report:
        yield lambda scan: report(*scan.doing, scan.done, scan.total)


@contextmanager
def clip_progress(quiet: bool = False, doing: str = "measuring") -> Iterator[Callable[[int, int], None]]:
    """Show how many clips of how many are done, and what is done to them."""
    with progress(quiet, stderr=True) as report:
        yield partial(report, doing, "clips")


def short_clips(count: int) -> str:
    """Return a sentence with the number of videos that `data.short_clips` extends."""
    return f"{count} clip{' is' if count == 1 else 's are'} shorter than {'its' if count == 1 else 'their'} bucket"


def reasons(summary: Summary) -> None:
    """Print why files of a catalog cannot be read, and how many."""
    for reason, count in summary.bad_reasons:
        line(f"  {count} × {reason}")


def histogram(title: str, of: Histogram, width: int = 12) -> None:
    """Print a histogram with bars."""
    largest = max((count for _, count in of), default=1)
    line(f"\n{title}")
    for label, count in of:
        line(f"  {label:>{width}}  {'█' * math.ceil(30 * count / largest):<30}  {count}")
