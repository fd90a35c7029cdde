"""Names of the sources of an edit: pictures or clips in order, of which each clip may have another number."""

from __future__ import annotations

SOURCES = ("source", "source-2", "source-3", "source-4")


def named(values: str | list[str] | tuple[str, ...] | None) -> dict[str, str]:
    """Return folders or files of sources by name, in order; one may be given without a list."""
    given = [] if values is None else [values] if isinstance(values, str) else list(values)
    return dict(zip(SOURCES, given, strict=False))
