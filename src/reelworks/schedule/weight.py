"""What a clip counts in its step's loss beside the others."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

LossWeight = Literal["token", "sample", "micro_batch"]
I64 = NDArray[np.int64]


def of_clip(loss_weight: LossWeight, tokens: I64 | int, clips: I64 | int) -> NDArray[np.float64]:
    """Weigh a clip of a micro-batch, or of each of several; the mean over a step does not depend on the unit.

    Args:
        loss_weight: What counts alike: `train.loss_weight`.
        tokens: Of one clip of the micro-batch's bucket.
        clips: Clips that the micro-batch trains.
    """
    match loss_weight:
        case "token":
            return np.asarray(tokens, dtype=np.float64)
        case "sample":
            return np.ones(np.shape(tokens))
        case "micro_batch":
            return np.asarray(1.0 / np.maximum(clips, 1))
