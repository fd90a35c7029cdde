"""Measures of the sound of a clip. Legend: S samples, C channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import numpy as np

from reelworks.annexes.quality.measure import MISSING, SampledClip
from reelworks.data.catalog.store import measured_columns

_FULL = 32768.0  # of 16 bits
_WINDOW_SECONDS, _SILENCE_DB = 0.05, -60.0
_QUIETEST_DB = -100.0  # of silence, whose level is minus infinity; below what 16 bits can tell
_FULL_SCALE = 30935  # levels, 0.5 dB below the largest: codecs do not keep exactly what was cut off


@final
class SoundLevel:
    """Level, silence and clipping of the sound as training hears it; missing for clips without sound."""

    name, version, columns, reads = "sound", 2, measured_columns.BUILT_IN["sound"], ("sound",)

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return level in dB, the share of silence, and the share of samples at full scale."""
        samples = clip.samples
        if samples is None or not len(samples):
            return MISSING, MISSING, MISSING
        power = np.square(samples.astype(np.float32) / _FULL).mean(axis=1, dtype=np.float64)
        window = max(int(clip.sample_rate * _WINDOW_SECONDS), 1)
        by_window = np.add.reduceat(power, np.arange(0, len(power), window))
        by_window /= np.diff([*range(0, len(power), window), len(power)])
        full = np.abs(samples.astype(np.int32)) >= _FULL_SCALE
        mean = float(power.mean())
        level_db = max(10 * math.log10(mean), _QUIETEST_DB) if mean > 0 else _QUIETEST_DB
        return level_db, float((by_window < 10 ** (_SILENCE_DB / 10)).mean()), float(full.mean())
