"""Terminal output of `plan`: forecasts of several epochs, warnings, and comparisons of two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from reelworks.cli import show
from reelworks.core import units

Json = dict[str, Any]
_FILES_SHOWN = 5
_EPOCH_KEYS = ("steps", "clips", "tokens", "micro_batches", "incomplete", "imbalance", "padding")
_SHARES = ("share_of_clips", "share_of_tokens", "share_of_time", "share_of_gradient")

_console = Console(highlight=False)


def forecast(values: Json, html: Path | None) -> None:
    """Print the first epoch, then all epochs and their totals."""
    show.plan(values)
    show.losses(values)
    shares = _table("share of", "clips", "tokens", "time", "gradient")
    for one in values["shares"]:
        shares.add_row(one["name"], *(f"{one[key]:.1%}" for key in _SHARES))
    _console.print(shares)
    if len(values["datasets"]) > 1:
        _datasets(values["datasets"])
    if len(values["epochs"]) > 1:
        epochs = _table("epoch", "steps", "clips", "tokens", "batches", "not full", "imbalance", "padding")
        for one in values["epochs"]:
            epochs.add_row(str(one["epoch"]), *_cells(one))
        epochs.add_row("sum", *_cells(values["sum"]))
        _console.print(epochs)
    _never_seen(values)
    if (steps := values["max_steps_to_set"]) is not None:
        show.line(
            "\nwarning: the learning rate schedule needs train.max_steps, which is not set, so this recipe cannot be "
            f"trained; all its epochs have {steps} steps"
        )
    _warning(values)
    if html is not None:
        show.line(f"\n{html}")


def _datasets(values: list[Json]) -> None:
    table = _table("share of", "clips", "tokens", "time", "showings per clip")
    for one in values:
        table.add_row(one["name"], *(f"{one[key]:.1%}" for key in _SHARES[:3]), f"{one['showings_per_clip']:.2f}")
    _console.print(table)


def _never_seen(values: Json) -> None:
    epochs = len(values["epochs"])
    never = values["never_seen"]
    when = "this epoch" if epochs == 1 else f"{epochs} epochs"
    by_reason = ", ".join(f"{one['clips']} {reason}" for reason, one in never["by_reason"].items())
    show.line(f"{never['clips']} clips never seen in {when}" + (f": {by_reason}" if by_reason else ""))
    if epochs > 1:
        for reason, one in never["by_reason"].items():
            more = one["clips"] - len(one["files"][:_FILES_SHOWN])
            named = ", ".join(one["files"][:_FILES_SHOWN])
            show.line(f"  {reason}: {named}" + (f" and {more} more" if more else ""))


def _warning(values: Json) -> None:
    proposals = values["proposals"]
    if proposals is None:
        return
    total = values["sum"]
    show.line(f"\nwarning: imbalance {total['imbalance']:.1%}, padding {total['padding']:.1%}")
    for one in proposals:
        show.line(f"  {units.change(one)}")
        show.line(f"    gives {_gives(one)}" + ("" if one["suffices"] else "; better, but not enough"))
    if (fewer := values["fewer_ranks"]) is not None:
        show.line(f"  --world {fewer['world']}\n    gives {_gives(fewer)}")
    if not proposals and fewer is None:
        show.line("  neither merging nor other batch sizes nor fewer GPUs improve it")


def _gives(one: Json) -> str:
    return f"{one['steps']} steps, imbalance {one['imbalance']:.1%}, padding {one['padding']:.1%}"


def difference(values: Json, names: tuple[str, str]) -> None:
    """Print keys, totals, buckets and reasons of two recipes."""
    keys = _table("key", *names)
    for one in values["keys"]:
        keys.add_row(one["key"], str(one["a"]), str(one["b"]))
    _console.print(keys) if values["keys"] else show.line("no key differs")
    figures = _table(f"{values['epochs']} epoch{'s' if values['epochs'] > 1 else ''}", *names)
    for one in values["figures"]:
        figures.add_row(one["name"].replace("_", " "), *(_number(one["name"], one[x]) for x in "ab"))
    _console.print(figures)
    for title, part in (("clips of bucket", "buckets"), ("rejected", "reasons")):
        table = _table(title, *names)
        for one in values[part]:
            table.add_row(one["name"], str(one["a"]), str(one["b"]))
        _console.print(table)


def _cells(one: Json) -> list[str]:
    return [_number(key, one[key]) for key in _EPOCH_KEYS]


def _number(key: str, value: float) -> str:
    return f"{value:.1%}" if key in ("imbalance", "padding") else str(value)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
