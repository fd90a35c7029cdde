"""Contact sheets of one step of a run, one for each micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reelworks.analysis import contact_sheet, discarded
from reelworks.analysis.contact_sheet import SampleView
from reelworks.core import files
from reelworks.report import sheet
from reelworks.schedule.plan import Entries

if TYPE_CHECKING:
    from reelworks.data.loader import MicroBatchRequest
    from reelworks.train.replay import Replay


def write_sheets(replay: Replay, folder: Path) -> list[Path]:
    """Draw a sheet for each micro-batch of a step, `column-0000.png`, in the plan's order.

    Clips are read again from their files; the sheet names those that cannot be read.

    Raises:
        UserError: The folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for request in replay.columns:
            written.append(folder / f"column-{request.index:04d}.png")
            files.write_bytes(written[-1], sheet.draw(looks(replay, request), request.shape))
    except OSError as error:
        raise sheet.unwritable(folder, error) from error
    return written


def looks(replay: Replay, request: MicroBatchRequest) -> list[SampleView]:
    """Return the clips of a micro-batch as training read them, without copies that only pad."""
    uid, copy = request.uids[request.real], request.draw_copies[request.real]
    row = replay.data.rows.find(uid)
    entries = Entries(uid, copy, replay.data.rows.ordinal[row], 0 * row + request.bucket)
    lost = discarded.lost_shares(replay.data, entries)
    return contact_sheet.sample_views(replay.data, entries, lost, epoch=request.epoch)
