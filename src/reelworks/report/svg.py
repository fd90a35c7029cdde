"""Bars as inline SVG, with colours of the style sheet and a tooltip for each part.

Bars stretch to the width of their container, so they hold no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from reelworks.core import units
from reelworks.report.run_facts import Part

_LENGTH = 1000.0
_OVERLAP = 0.003  # below the next column and part, to hide seams between them


def bar(parts: Sequence[Part], whole: float = 1.0) -> Markup:
    """Draw parts from left to right; the rest of the whole stays empty."""
    rects, left = [], 0.0
    for part in parts:
        rects.append(_rect(part, left, 0, part.share / whole, 1))
        left += part.share / whole
    return _svg("share", rects)


def strip(columns: Sequence[Sequence[Part]]) -> Markup:
    """Draw columns of equal width from left to right, each with its parts from the top down."""
    rects, width = [], 1 / max(len(columns), 1)
    for i, parts in enumerate(columns):
        top = 0.0
        for part in parts:
            rects.append(_rect(part, i * width, top, width + _OVERLAP, part.share + _OVERLAP))
            top += part.share
    return _svg("strip", rects)


def _rect(part: Part, left: float, top: float, width: float, height: float) -> Markup:
    edges = (f"{_LENGTH * edge:.2f}" for edge in (left, top, width, height))
    tooltip = f"{part.label}: {units.percent(part.share)}"
    rect = Markup(
        '<rect x="{}" y="{}" width="{}" height="{}" style="fill: var(--{})"><title>{}</title></rect>'
    )
    return rect.format(*edges, part.tone, tooltip)


def _svg(kind: str, rects: Iterable[Markup]) -> Markup:
    opening = f'<svg class="{kind}" viewBox="0 0 {_LENGTH:g} {_LENGTH:g}" preserveAspectRatio="none" shape-rendering="crispEdges">'
    return Markup(opening) + Markup("").join(rects) + Markup("</svg>")
