"""Explain an epoch without a step: why its clips are left out, and how to fix that."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.core.errors import UserError
from reelworks.data.dataset import Dataset, DataSpec


def no_steps(data: Dataset, epoch: int = 0) -> UserError:
    """Return the error for an epoch without a step, with the clips of every entry and a remedy."""
    result, _ = data.assignment(epoch)
    if (error := _mostly(data.spec, result.reason)) is not None:
        return error
    lines = []
    for index, entry in enumerate(data.table.entries):
        inside = np.isin(result.bucket, data.table.of_entry(index)) & (result.reason == Reason.NONE)
        lines.append(f"{entry}: {int(inside.sum())} clips")
    reasons = [
        f"{reason.label}: {int((result.reason == reason).sum())}"
        for reason in Reason
        if reason != Reason.NONE and (result.reason == reason).any()
    ]
    fits = (result.reason == Reason.NOT_DRAWN).any()
    problem = "no clip that fits a bucket is drawn" if fits else "no clip fits any bucket"
    return UserError(
        f"{problem}, so an epoch would have no step ({'; '.join(lines)}; {', '.join(reasons)})",
        code="empty-epoch",
        field="bucket",
        remedy=("raise bucket.keep_prob or dataset.repeats, " if fits else "")
        + "lower bucket.num_frames or bucket.resolution to what the clips have, or set buckets.upscale = true",
    )


def _mostly(spec: DataSpec, reason: NDArray[np.int8]) -> UserError | None:
    """Return the error for the one setting that leaves out more than half of the clips, or None."""
    for kind, (problem, field, value, remedy) in _settings(spec).items():
        count = int((reason == kind).sum())
        if 2 * count > len(reason):
            problem = f"{count} of {len(reason)} clips {problem} (reason {kind.label}), so an epoch would have no step"
            return UserError(problem, code="empty-epoch", field=field, value=value, remedy=remedy)
    return None


def _settings(spec: DataSpec) -> dict[Reason, tuple[str, str, Any, str]]:
    """Return problem, field, value and remedy of each setting that leaves clips out."""
    folders = spec.group == "folder"
    lower = "lower validation.split" + (', or set validation.group = "file"' if folders else "")
    return {
        Reason.NO_CAPTION: (
            "have no caption",
            "dataset.path",
            [dataset.path for dataset in spec.datasets],
            "write each caption into a text file next to its clip, for example cat.txt for cat.mp4",
        ),
        Reason.NO_COMPANION: (
            "have no companion file (control, source or mask) that fits them",
            "dataset",
            [dataset.companions for dataset in spec.datasets],
            "list each clip with its problem: `reelworks plan RECIPE --rejected FILE.csv`",
        ),
        Reason.FILTERED: (
            "do not pass their dataset's filter",
            "dataset.filter",
            [dataset.filter for dataset in spec.datasets],
            "loosen the filter; `reelworks inspect CATALOG` shows the values that the clips have",
        ),
        Reason.IN_EXCLUDE_FILE: (
            "are in the exclude list",
            "exclude_file",
            spec.exclude_file,
            "remove lines from that file",
        ),
        Reason.HELD_OUT: ("are held out for validation", "validation.split", spec.split, lower),
    }
