"""Check that a loss mask is not empty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLACK = 16  # of 255: darker values count as 0, since codecs leave noise in black areas
EMPTY = "the loss mask is black in every frame and pixel used of the clip"


def counts(mask_THWC: NDArray[np.uint8]) -> bool:
    """Return whether any pixel of a mask counts in the loss."""
    return bool((mask_THWC.mean(axis=-1) >= BLACK).any())
