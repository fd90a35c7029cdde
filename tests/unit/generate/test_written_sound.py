"""Clips are written with their sound, which begins with the first frame."""

import av
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


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
@pytest.mark.parametrize("rate", [400, 10_000, 12_025, 20_000, 22_050, 50_000, 96_000])
def test_sound_of_any_rate_keeps_its_pitch_and_length(tmp_path, suffix, rate):
    """Codecs have some rates only: PyAV reads a tone of 150 Hz and one second, at a rate that AAC and Opus share with players."""
    path, tone = tmp_path / f"clip{suffix}", 20_000 * np.sin(2 * np.pi * 150 * np.arange(rate) / rate)
    sound = Sound(tone.astype(np.int16)[:, None], rate)
    writers.write(path, np.zeros((8, 16, 16, 3), np.uint8), 8.0, sound)
    with av.open(str(path)) as container:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
        written = container.streams.audio[0].rate
    assert 8000 <= written <= 48_000
    assert written >= min(rate, 48_000)
    assert len(samples) / written == pytest.approx(1.0, abs=0.15), "but for the codec's whole frames"
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 4 * written))
    assert np.argmax(spectrum) / 4 == pytest.approx(150, abs=1)


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100, 48_000])
def test_a_rate_that_the_codec_has_stays(tmp_path, rate):
    writers.write(
        path := tmp_path / "clip.mp4",
        np.zeros((8, 16, 16, 3), np.uint8),
        8.0,
        Sound(np.zeros((rate, 1), np.int16), rate),
    )
    with av.open(str(path)) as container:
        assert container.streams.audio[0].rate == rate
