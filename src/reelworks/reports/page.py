"""Self-contained HTML pages from the templates of this folder, with style sheet and scripts inlined.

All templates extend `base.html`; `parts.html` holds macros that several of them share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reelworks.core import units
from reelworks.reports.plots import Figure


def render(template: str, *, figures: list[Figure], **values: Any) -> str:
    """Fill a template of this folder and escape its values; without figures the page includes no plotting library."""
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (units.count, units.loss, units.percent, units.size, units.duration, units.moment):
        environment.filters[function.__name__] = function
    plotly = ""
    if figures:
        from plotly.offline import get_plotlyjs  # slow to import

        plotly = get_plotlyjs()
    return environment.get_template(template).render(
        css=Markup((folder / "style.css").read_text(encoding="utf-8")),
        script=Markup("".join((folder / name).read_text(encoding="utf-8") for name in ("shared.js", "script.js"))),
        plotly=Markup(plotly),
        figures=figures,
        **values,
    )
