"""How a check looks on a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from reelworks.cli.show import line

_DTYPES = ("storage", "compute", "master", "reduction", "output")
_console = Console(highlight=False)


def result(told: dict[str, Any]) -> None:
    """Dtypes, casts, memory and violations."""
    _dtypes(told["components"])
    for component in told["components"]:
        _casts(component)
    _memory(told)
    line(f"{told['shapes']} shapes tried without numbers")
    for one in told["rehearsed"]:
        line(
            f"{one['bucket']}, batch size {one['batch_size']}: forward and backward in {one['seconds']:.1f} s on "
            f"{told['device']}, {_size(one['activations_bytes'])} of activations"
        )
    for fault in told["violations"]:
        line(f"violation: {fault['module']}: {fault['problem']}\n  remedy: {fault['remedy']}")
    count = len(told["violations"])
    line(f"{count} violation{'s' if count > 1 else ''}" if count else "no violation")


def _dtypes(components: list[dict[str, Any]]) -> None:
    """A column for each component: so many dtypes beside one another would not fit into 80 signs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column()
    for one in components:
        table.add_column(f"{one['component']}\n{one['name']}")
    for key in (*_DTYPES, "device"):
        table.add_row(key, *(one[key] or "–" for one in components))
    table.add_row("parameters", *(f"{one['parameters']:,}" for one in components))
    _console.print(table)


def _casts(component: dict[str, Any]) -> None:
    """How a frozen base lies there, and inputs with the same cast in one line."""
    if component["base"]:
        line(f"{component['component']}: weights of the frozen base: {component['base']}")
    inputs: dict[str, list[str]] = {}
    for cast in component["casts"]:
        same = cast["from"] == cast["to"]
        words = f"stay {cast['to']}" if same else f"{cast['from']} → {cast['to']}"
        inputs.setdefault(words, []).append(cast["input"])
    for words, names in inputs.items():
        line(f"{component['component']}: {', '.join(names)}: {words}")


def _memory(told: dict[str, Any]) -> None:
    sizes = dict(told["memory"])
    total, host = sizes.pop("total"), sizes.pop("host")
    parts = [f"{name} {_size(size)}" for name, size in sizes.items() if size]
    beside = f"; {_size(host)} of CPU memory" if host else ""
    each = f" of each of {told['world']} processes" if told["world"] > 1 else ""
    line(f"\nmemory{each}, estimated: {_size(total)} ({', '.join(parts)}){beside}")


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 1e9:.2f} GB" if count_bytes >= 1e8 else f"{count_bytes / 1e6:.1f} MB"
