"""Plans as files of the run folder: one for each segment, read back when a resume finds changes."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import files
from reelworks.run.folder import RunFolder

Arrays = dict[str, NDArray[Any]]
_NAME = re.compile(r"plan-(\d{3,})-(\d{6,})-(\d{3,})\.npz")


def path(run: RunFolder, generation: int, epoch: int, segment: int) -> Path:
    """File of a segment's plan."""
    return run.plan_folder / f"plan-{generation:03d}-{epoch:06d}-{segment:03d}.npz"


def write(
    run: RunFolder,
    generation: int,
    epoch: int,
    segment: int,
    arrays: Arrays,
    in_use: Collection[tuple[int, int]] = (),
) -> None:
    """Write a segment's plan whole, and drop those that no checkpoint can ask for any more.

    Args:
        run: The run folder.
        generation: Times that the data were restarted.
        epoch: The segment's epoch.
        segment: Its number in the epoch.
        arrays: The plan.
        in_use: Generations and epochs of the run's checkpoints.
    """
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    files.write_bytes(path(run, generation, epoch, segment), buffer.getvalue())
    for old in run.plan_folder.iterdir():
        name = _NAME.fullmatch(old.name)
        if name and (int(name[1]), int(name[2])) not in {*in_use, (generation, epoch)}:
            old.unlink(missing_ok=True)


def read(run: RunFolder, generation: int, epoch: int, segment: int) -> Arrays | None:
    """Read a segment's plan; None where there is none or it is damaged."""
    try:
        # By way of memory: numpy leaves a damaged file open.
        data = io.BytesIO(path(run, generation, epoch, segment).read_bytes())
        with np.load(data, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
