"""Clips are written with their sound, which begins with the first frame."""

import numpy as np
import pytest
import sound_clips

from reelworks.core.shape import Shape
from reelworks.data.media import decode, sound
from reelworks.data.media.decode import Request
from reelworks.data.media.sound import SoundRequest
from reelworks.inference.generate import writers
from reelworks.inference.generate.writers import Sound


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
@pytest.mark.parametrize(("rate", "channels"), [(24_000, 2), (1600, 1)])
def test_a_written_beep_is_heard_with_its_flash(tmp_path, suffix, rate, channels):
    at, path = np.arange(2 * rate) / rate, tmp_path / f"clip{suffix}"
    tone = np.where((at >= 1) & (at < 1.2), 20_000 * np.sin(2 * np.pi * 300 * at), 0).astype(np.int16)
    frames = np.zeros((48, 32, 32, 3), np.uint8)
    frames[24:29] = 255
    writers.write(path, frames, 24.0, Sound(np.repeat(tone[:, None], channels, axis=1), rate))
    clip = Request(path, False, Shape(48, 32, 32))
    samples = sound.load(SoundRequest(clip, 16_000, 1, 32_000))[:, 0]
    loud = np.convolve(np.abs(samples.astype(float)), np.ones(80) / 80, "same") > 4000
    seen = sound_clips.onsets(decode.load(clip).mean((1, 2, 3)) > 128, 24)
    assert seen == pytest.approx([1.0])
    assert sound_clips.onsets(loud, 16_000) == pytest.approx(seen, abs=1 / 24)
