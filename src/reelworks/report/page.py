"""Pages of one file each: a template of this folder with the style sheet and the scripts inside it.

All templates fill `base.html`; what several of them show stands in `parts.html`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reelworks.core import files, units
from reelworks.report.plots import Figure


def render(template: str, *, figures: list[Figure], **values: Any) -> str:
    """Fill a template; all that comes from files is escaped.

    Args:
        template: Its name in this folder.
        figures: Plots; without any the page carries no plotting library.
        values: What else the template names.
    """
    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    spoken = (units.count, units.loss, units.percent, units.size, units.duration, units.moment, units.change)
    for function in spoken:
        environment.filters[function.__name__] = function
    return environment.get_template(template).render(
        css=Markup((here / "style.css").read_text(encoding="utf-8")),
        script=Markup((here / "script.js").read_text(encoding="utf-8")),
        plotly=_plotly() if figures else "",
        figures=figures,
        **values,
    )


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs  # slow to import, and not every page has figures

    return Markup(get_plotlyjs())


def write(file: Path, text: str) -> None:
    """Write the page that `--html FILE` asks for.

    Raises:
        UserError: The file cannot be written.
    """
    files.write_for("--html", file, text.encode())
