"""What diffusion-pipe does with each clip in an epoch, by the rules of its source (8f83dbf)."""

from __future__ import annotations

from collections.abc import Sequence

from reelworks.compat.draft import FormerSettings
from reelworks.compat.former import Clip, FormerEpoch


def former_epoch(settings: FormerSettings, clips: Sequence[Clip]) -> FormerEpoch | None:
    """Return the use of each clip, and the rules that it follows from."""
    return None
