"""`reelworks report`: a run as one HTML file."""

from __future__ import annotations

from reelworks.cli.options import RunArgument


def report(run: RunArgument) -> None:
    """Draw a run as one HTML file."""
    from reelworks.cli import show
    from reelworks.report import html
    from reelworks.run.folder import RunFolder

    show.line(str(html.write(RunFolder(run))))
