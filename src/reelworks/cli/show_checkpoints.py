"""Terminal output of `checkpoints`, from the values that `--json` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from reelworks.cli import show
from reelworks.core.units import told_bytes, told_seconds

Row = dict[str, Any]

_console = Console(highlight=False)


def table(rows: Sequence[Row], free_bytes: int) -> None:
    """Print a line for each checkpoint, and the total size."""
    drawn = Table()
    for name in ("step", "epoch", "size", "age"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("metrics")
    drawn.add_column("kept because")
    for row in rows:
        drawn.add_row(
            str(row["step"]),
            _or_unknown(row.get("epoch")),
            told_bytes(row["bytes"]) if "bytes" in row else "?",
            told_seconds(time.time() - row["created"]) if "created" in row else "?",
            _metrics(row),
            why(row),
        )
    _console.print(drawn)
    total = told_bytes(sum(row.get("bytes", 0) for row in rows))
    count = "1 checkpoint" if len(rows) == 1 else f"{len(rows)} checkpoints"
    show.line(f"{count}, {total}; {told_bytes(free_bytes)} free on the disk")


def why(row: Row) -> str:
    """Return why a checkpoint is kept or will be deleted, or what is damaged."""
    reasons = "; ".join(row["reasons"])
    return {"kept": reasons, "goes": f"deleted at the next save: {reasons}"}.get(row["state"], f"damaged: {reasons}")


def details(row: Row) -> None:
    """Print one checkpoint and its files."""
    show.line(f"step {row['step']}: {why(row)}")
    show.line(f"  {row['path']}")
    if "files" not in row:
        return
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    show.line(
        f"  epoch {_or_unknown(row['epoch'])}, saved {_when(row['created'])} by {row['world_size']} "
        f"process{'es' if row['world_size'] > 1 else ''}, {told_bytes(row['bytes'])}"
    )
    show.line(f"  metrics: {_metrics(row) or 'none'}")
    show.line(f"  versions: {versions}")
    for file in row["files"]:
        show.line(f"  {file['path']}  {told_bytes(file['size'])}")


def verified(rows: Sequence[Row], full: bool) -> None:
    """Print which checkpoints are good."""
    how = "all digests compared" if full else "sizes compared; --full reads everything"
    for row in rows:
        show.line(f"step {row['step']}: {'good' if row['good'] else 'bad: ' + row['reason']}")
    show.line(f"{sum(row['good'] for row in rows)} of {len(rows)} good ({how})")


def pruned(report: Row) -> None:
    """Print checkpoints that were deleted, or would be, with their reasons."""
    for row in report["deleted"]:
        verb = "would delete" if report["dry_run"] else "deleted"
        show.line(f"{verb} step {row['step']} ({told_bytes(row['bytes'])}): {'; '.join(row['reasons'])}")
    freed = told_bytes(sum(row["bytes"] for row in report["deleted"]))
    show.line(f"{len(report['deleted'])} of {len(report['deleted']) + len(report['kept'])} checkpoints, {freed}")


def explained(report: Row) -> None:
    """Print the state and history of a checkpoint."""
    for text in _explained(report):
        show.line(text)


def _explained(report: Row) -> Iterator[str]:
    if report["state"] in ("kept", "goes", "damaged"):
        yield f"step {report['step']} exists; {'' if report['state'] != 'kept' else 'kept: '}{why(report)}"
    else:
        ended = f" {_when(report['ended'])}" if report["ended"] else ""
        yield f"step {report['step']} is {report['state']}{ended}: {'; '.join(report['reasons'])}"
    size = f", {told_bytes(report['bytes'])}" if report["bytes"] is not None else ""
    yield f"  saved {_when(report['saved']) if report['saved'] else 'at an unknown time'}{size}"
    yield f"  metrics: {_metrics(report) or 'none'}"
    kinds = [event["event"] for event in report["history"]]
    for i, event in enumerate(report["history"]):
        if event["event"] == "deleting" and "deleted" in kinds[i:]:
            continue
        reasons = event.get("reasons") or [event["reason"]] if {"reasons", "reason"} & event.keys() else []
        yield f"  {_when(event['time'])}  {event['event']}" + (f": {'; '.join(reasons)}" if reasons else "")


def _metrics(row: Row) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in row.get("metrics", {}).items())


def _or_unknown(value: object) -> str:
    return "?" if value is None else str(value)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
