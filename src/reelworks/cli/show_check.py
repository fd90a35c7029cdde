"""Terminal output of `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from reelworks.cli.show import line

if TYPE_CHECKING:
    from reelworks.train.preflight.check import CheckReport, ComponentReport

_console = Console(highlight=False)


def report(report: CheckReport) -> None:
    """Print dtypes, casts, memory and violations."""
    _dtypes(report.components)
    for component in report.components:
        _casts(component)
    _memory(report)
    line(f"{report.shapes} shapes checked on the meta device")
    for rehearsal in report.rehearsed:
        line(
            f"{rehearsal.bucket}, batch size {rehearsal.batch_size}: forward and backward in "
            f"{rehearsal.seconds:.1f} s on {report.device}, {_size(rehearsal.activations_bytes)} of activations"
        )
    for fault in report.violations:
        line(f"violation: {fault.field}: {fault.problem}\n  remedy: {fault.remedy}")
    count = len(report.violations)
    line(f"{count} violation{'s' if count > 1 else ''}" if count else "no violation")


def _dtypes(components: list[ComponentReport]) -> None:
    """Print a column for each component; columns of dtypes would not fit into 80 characters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column()
    for component in components:
        table.add_column(f"{component.kind}\n{component.name}")
    columns = [component.dtypes | {"device": component.device} for component in components]
    for key in columns[0]:
        table.add_row(key, *(column[key] or "–" for column in columns))
    table.add_row("parameters", *(f"{component.parameters:,}" for component in components))
    _console.print(table)


def _casts(component: ComponentReport) -> None:
    """Print the storage of a frozen base, and inputs with the same cast in one line."""
    if component.contract.base:
        line(f"{component.kind}: weights of the frozen base: {component.contract.base}")
    inputs: dict[str, list[str]] = {}
    for cast in component.casts:
        same = cast.arrives_in == cast.cast_to
        words = f"stay {cast.cast_to}" if same else f"{cast.arrives_in} → {cast.cast_to}"
        inputs.setdefault(words, []).append(cast.input)
    for words, names in inputs.items():
        line(f"{component.kind}: {', '.join(names)}: {words}")


def _memory(report: CheckReport) -> None:
    memory = report.memory
    parts = [f"{name} {_size(size)}" for name, size in memory.parts.items() if size]
    on_host = f"; {_size(memory.host)} of CPU memory" if memory.host else ""
    each = f" of each of {report.world} processes" if report.world > 1 else ""
    line(f"\nmemory{each}, estimated: {_size(memory.total)} ({', '.join(parts)}){on_host}")


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 1e9:.2f} GB" if count_bytes >= 1e8 else f"{count_bytes / 1e6:.1f} MB"
