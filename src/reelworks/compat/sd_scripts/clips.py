"""What sd-scripts does with each picture in an epoch."""

from __future__ import annotations

from collections.abc import Sequence

from reelworks.compat.draft import FormerSettings, ImportDraft
from reelworks.compat.former import Clip, FormerEpoch
from reelworks.compat.kohya.levels import FormerDataset


def epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch | None:
    return None


def count_pictures(draft: ImportDraft, datasets: Sequence[FormerDataset]) -> list[int] | None:
    return None
