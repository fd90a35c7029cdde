"""Self-contained HTML pages from the templates of this folder, with style sheet and scripts inlined.

All templates extend `base.html`; `parts.html` holds macros that several of them share.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reelworks.core import units
from reelworks.reports.plots import Figure

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A section of a run's report that an annex adds.

    Attributes:
        anchor: Its `id` in the page.
        link: Text of the link to it.
    """

    anchor: str
    link: str
    title: str
    html: Markup


def render(template: str, *, figures: list[Figure], **values: Any) -> str:
    """Fill a template of this folder and escape its values; without figures the page includes no plotting library."""
    plotly = ""
    if figures:
        from plotly.offline import get_plotlyjs  # slow to import

        plotly = get_plotlyjs()
    return fill(
        _FOLDER / template,
        css=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup("".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("shared.js", "script.js"))),
        plotly=Markup(plotly),
        figures=figures,
        **values,
    )


def fill(template: Path, **values: Any) -> Markup:
    """Fill a template and escape its values; numbers have the filters of `core.units`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (units.count, units.loss, units.percent, units.size, units.duration, units.moment):
        environment.filters[function.__name__] = function
    return Markup(environment.get_template(template.name).render(values))
