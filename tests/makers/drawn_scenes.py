"""Draw scenes and write clips of them with PyAV. Legend: T frames, H height, W width, 3 colours, S samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Frame = NDArray[np.uint8]
SAMPLE_RATE = 48_000


def scene(rng: np.random.Generator, height: int, width: int, *, shapes: int = 14) -> Frame:
    """Return a picture `[H, W, 3]` with the falling spectrum of natural ones, and shapes with sharp edges before it."""
    y, x = np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width
    amplitude = 1 / np.maximum(np.hypot(y, x), 1) ** 1.3
    planes = []
    for _ in range(3):
        spectrum = amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape))
        plane = np.fft.irfft2(spectrum, (height, width))
        planes.append(plane / plane.std())
    grey = planes[0][..., None] + 0.5 * np.stack(planes, axis=-1)
    picture = Image.fromarray(np.clip(115 + 32 * grey, 12, 235).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(shapes):
        size = rng.integers(height // 16, height // 4)
        left, top = int(rng.integers(0, width - size)), int(rng.integers(0, height - size))
        box = (left, top, left + int(size * rng.uniform(0.5, 1)), top + int(size * rng.uniform(0.5, 1)))
        color = tuple(rng.integers(25, 225, 3).tolist())
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)(box, fill=color)
    return np.asarray(picture)


def pan(picture: Frame, frames: int, height: int, width: int, step_px: float, *, first_px: float = 0.0) -> list[Frame]:
    """Return frames of a camera that moves to the right over a larger picture, by so many pixels between frames."""
    shown = []
    for i in range(frames):
        left = first_px + i * step_px
        low, share = int(left), left - int(left)
        two = picture[:height, low : low + width + 1].astype(np.float32)
        shown.append(((1 - share) * two[:, :width] + share * two[:, 1 : width + 1]).round().astype(np.uint8))
    return shown


def blurred(picture: Frame, radius_px: float) -> Frame:
    """Return a picture after a Gaussian blur of this standard deviation."""
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(radius_px)))


def noisy(rng: np.random.Generator, picture: Frame, deviation: float) -> Frame:
    """Return a picture with Gaussian noise, the same in all colours, of this standard deviation."""
    noise = deviation * rng.standard_normal(picture.shape[:2])[..., None]
    return np.clip(picture + noise, 0, 255).round().astype(np.uint8)


def bordered(picture: Frame, top: int, bottom: int, left: int, right: int) -> Frame:
    """Return a picture with black borders of these pixels on its sides."""
    return np.pad(picture, ((top, bottom), (left, right), (0, 0)))


def write_picture(path: Path, picture: Frame, **options: Any) -> Path:
    """Write a picture in the format of the suffix."""
    Image.fromarray(picture).save(path, **options)
    return path


def write_clip(
    path: Path,
    frames: Iterable[Frame],
    *,
    fps: int = 24,
    crf: int = 20,
    preset: str = "veryfast",
    sound_S: NDArray[np.float32] | None = None,
    late: int = 0,
) -> Path:
    """Write frames as H.264, with sound of 48 kHz as AAC if given, which begins so many frames earlier."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", fps, options={"crf": str(crf), "preset": preset})
        stream.pix_fmt = "yuv420p"
        track = None if sound_S is None else out.add_stream("aac", SAMPLE_RATE, layout="mono")
        for i, pixels in enumerate(frames):
            if i == 0:
                stream.height, stream.width = pixels.shape[:2]
            shown = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            shown.pts, shown.time_base = late + i, Fraction(1, fps)
            out.mux(stream.encode(shown))
        out.mux(stream.encode())
        if track is not None and sound_S is not None:
            for at in range(0, len(sound_S), 1024):
                part = np.ascontiguousarray(sound_S[None, at : at + 1024])
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
                frame.sample_rate, frame.pts = SAMPLE_RATE, at
                out.mux(track.encode(frame))
            out.mux(track.encode())
    return path


def cropped(picture: Frame, top: float, bottom: float, left: float, right: float) -> Frame:
    """Return a picture without these shares of its sides."""
    height, width = picture.shape[:2]
    return picture[int(height * top) : height - int(height * bottom), int(width * left) : width - int(width * right)]


def _with_logo(rng: np.random.Generator, picture: Frame) -> Frame:
    shown, (height, width) = picture.copy(), picture.shape[:2]
    tall, wide = height // 7, width // 5
    shown[height - tall - 8 : height - 8, width - wide - 8 : width - 8] = rng.integers(0, 256, 3)
    return shown


# What makes a near-duplicate of a picture, by kind.
COPIES: dict[str, Callable[[np.random.Generator, Frame], Any]] = {
    "re-encoded": lambda _, p: p,
    "half size": lambda _, p: np.asarray(Image.fromarray(p).resize((p.shape[1] // 2, p.shape[0] // 2))),
    "crop of 5 %": lambda _, p: cropped(p, 0.05, 0.05, 0.05, 0.05),
    "crop of 8 % at a corner": lambda _, p: cropped(p, 0.0, 0.08, 0.08, 0.0),
    "mirrored": lambda _, p: p[:, ::-1],
    "mirrored and cropped": lambda _, p: cropped(p[:, ::-1], 0.03, 0.0, 0.04, 0.02),
    "logo": _with_logo,
    "brighter": lambda _, p: np.clip(1.15 * p.astype(np.float64) + 8, 0, 255).astype(np.uint8),
}
