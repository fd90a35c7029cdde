"""Clips with sound that tests write: a flash and a beep at the same times."""

from fractions import Fraction

import av
import numpy as np

SIZE = 64


def write(
    path, *, seconds, events, fps=24, rate=44_100, channels=2, audio="aac", video="libx264", offset=0.0, late=0.0
):
    """Write a clip whose frames are white, and whose sound is a tone, for 0.1 s from each of `events` on.

    `offset` delays the whole clip in its container's time, and `late` lets the sound begin later than the picture.
    """
    with av.open(str(path), "w") as out:
        picture = out.add_stream(video, Fraction(fps).limit_denominator(1001))
        picture.height = picture.width = SIZE
        picture.pix_fmt = "yuv420p"
        track = out.add_stream(audio, rate, layout="mono" if channels == 1 else "stereo")
        at = np.arange(int((seconds - late) * rate)) / rate + late
        loud = np.any([(at >= e) & (at < e + 0.1) for e in events], axis=0)
        tone = np.where(loud, 0.8 * np.sin(2 * np.pi * 440 * at), 0).astype(np.float32)
        step = track.codec_context.frame_size or 1024
        base = Fraction(1, 90_000)
        for i in range(round(seconds * fps)):
            t = i / fps
            value = 255 if any(e <= t + 1e-9 < e + 0.1 for e in events) else 0
            frame = av.VideoFrame.from_ndarray(np.full((SIZE, SIZE, 3), value, np.uint8), format="rgb24")
            frame.pts, frame.time_base = round((t + offset) / base), base
            out.mux(picture.encode(frame))
        out.mux(picture.encode())
        planar = track.codec_context.format.name if track.codec_context.format else "fltp"
        for first in range(0, len(tone), step):
            part = tone[first : first + step]
            samples = np.ascontiguousarray(np.broadcast_to(part, (channels, len(part))))
            if planar == "s16":
                samples = np.round(samples.T.reshape(1, -1) * 32767).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(samples, format=planar, layout=track.layout.name)
            frame.sample_rate, frame.pts = rate, first + round((offset + late) * rate)
            frame.time_base = Fraction(1, rate)
            out.mux(track.encode(frame))
        out.mux(track.encode())


def write_sound(path, samples, rate):
    """Write int16 samples `[S, channels]` as a file of sound, in the codec that goes with its suffix."""
    codec = {".wav": "pcm_s16le", ".m4a": "aac", ".ogg": "libopus"}.get(path.suffix, path.suffix[1:])
    with av.open(str(path), "w") as out:
        _encode_sound(out, out.add_stream(codec, rate, layout=_layout(samples)), samples, rate)


def add_sound(clip, path, samples, rate):
    """Write a clip with int16 samples `[S, channels]` as its sound, beside its own picture."""
    with av.open(str(clip)) as given, av.open(str(path), "w") as out:
        picture = out.add_stream_from_template(given.streams.video[0])
        track = out.add_stream("pcm_s16le", rate, layout=_layout(samples))
        for packet in given.demux(given.streams.video[0]):
            if packet.dts is not None:
                packet.stream = picture
                out.mux(packet)
        _encode_sound(out, track, samples, rate)


def _layout(samples):
    return "mono" if samples.shape[1] == 1 else "stereo"


def _encode_sound(out, track, samples, rate):
    if not len(samples):
        return
    resampler = av.AudioResampler(
        track.codec_context.format, _layout(samples), rate, track.codec_context.frame_size or 1024
    )
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.reshape(1, -1)), "s16", _layout(samples))
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    for part in (*resampler.resample(frame), *resampler.resample(None), None):
        out.mux(track.encode(part))


def onsets(loud, rate):
    """Return the seconds at which a mask begins to be true."""
    return np.flatnonzero(np.diff(loud.astype(int), prepend=0) == 1) / rate
