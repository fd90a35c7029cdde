"""Which loss masks show anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLACK = 16  # of 255: what is darker counts as 0, since codecs leave noise in black
EMPTY = "nothing counts of what is shown of the clip"


def counts(mask_THWC: NDArray[np.uint8]) -> bool:
    """Tell whether anything of a mask counts."""
    return bool((mask_THWC.mean(axis=-1) >= BLACK).any())
