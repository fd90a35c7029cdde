"""The clips of a run to look at, each with its first frame, caption and word, as a section of its report."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from reelworks.annexes.learning.learning import Learning
from reelworks.core.errors import UserError
from reelworks.data.media import decode_pool
from reelworks.data.media.reading import MediaError
from reelworks.data.run.folder import RunFolder
from reelworks.reports import page, previews
from reelworks.reports.page import Section

_MOST_CLIPS = 24
_LONG_PX = 200


def of_run(run: RunFolder) -> Section | None:
    """Return the clips of a run to look at; None if no checkpoint holds losses of clips."""
    try:
        known = Learning.of_run(run)
    except UserError:
        return None
    faults, ranked = known.to_look_at()
    places = np.concatenate([faults[:_MOST_CLIPS], ranked])
    report = known.report(places)
    captions, pictures = [""] * len(report.clips), [""] * len(report.clips)
    for found, named, ordinal in known.located(places):
        rows = named.catalog.rows_at(np.sort(ordinal))
        for i, row in zip(found.tolist(), np.searchsorted(np.sort(ordinal), ordinal).tolist(), strict=True):
            captions[i] = rows.caption[row].as_py() or ""
            with suppress(MediaError, OSError):
                request = previews.first_frame(rows, row, _LONG_PX)
                pictures[i] = previews.picture_uri(decode_pool.load(request)[0])
    clips = list(zip(report.clips, captions, pictures, strict=True))
    template, listed = Path(__file__).parent / "wall.html", min(len(faults), _MOST_CLIPS)
    html = page.fill(template, report=report, faults=len(faults), listed=listed, clips=clips)
    return Section("learning", "Learning", "What was learnt of each clip", html)
