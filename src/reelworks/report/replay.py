"""The clips of one step of a run as contact sheets, one for each micro-batch."""

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

    Clips are read anew from their files; what cannot be read is told on the sheet.

    Raises:
        UserError: The folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for work in replay.columns:
            written.append(folder / f"column-{work.index:04d}.png")
            files.write_bytes(written[-1], sheet.draw(looks(replay, work), work.shape))
    except OSError as error:
        raise sheet.unwritable(folder, error) from error
    return written


def looks(replay: Replay, work: MicroBatchRequest) -> list[SampleView]:
    """The clips of a micro-batch as training read them; copies that only pad are left out."""
    uid, copy = work.uids[work.real], work.draw_copies[work.real]
    row = replay.data.rows.find(uid)
    entries = Entries(uid, copy, replay.data.rows.ordinal[row], 0 * row + work.bucket)
    lost = discarded.lost_shares(replay.data, entries)
    return contact_sheet.sample_views(replay.data, entries, lost, epoch=work.epoch)
