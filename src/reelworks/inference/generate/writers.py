"""Write pictures, clips and contact sheets.

Frames are uint8 RGB arrays `[T, H, W, 3]`. Files appear complete: they are written under a temporary name and renamed,
so that a report never embeds half a clip.
"""

from __future__ import annotations

import bisect
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from reelworks.core import files
from reelworks.core.arrays import Frames
from reelworks.core.errors import UserError, nearest
from reelworks.data.media import lettering


class Sound(NamedTuple):
    """Sound of a clip."""

    samples: NDArray[np.int16]  # `[S, channels]`, of one or two channels
    rate: int  # samples per second


# suffix -> (container, its options, codec, its options). crf 14 and 18 are visually lossless, so that artifacts in
# previews come from the model.
_VIDEO: dict[str, tuple[str, dict[str, str], str, dict[str, str]]] = {
    ".mp4": ("mp4", {"movflags": "+faststart"}, "libx264", {"crf": "14", "preset": "medium"}),
    ".webm": ("webm", {}, "libvpx-vp9", {"crf": "18", "b:v": "0"}),
}
# BT.709 of limited range, by the numbers of ISO/IEC 23091-2: what states nothing, players read by its size.
_COLOURS = dict.fromkeys(("colorspace", "color_primaries", "color_trc", "color_range"), 1)
_AUDIO = {".mp4": ("aac", "fltp"), ".webm": ("libopus", "s16")}  # codecs, and the samples that they take
_PLAYED_RATES = range(8_000, 48_001)  # others of a codec are not known to all players
_IMAGE = ".png"

_GAP_PX, _CAPTION_PX, _FONT_PX = 12, 24, 14
_PAPER, _INK = (250, 250, 248), (60, 60, 58)


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success and is removed on failure; its folder is created."""
    with files.writing("output", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as temporary:
            yield temporary


def write_video(path: Path, frames_THWC: Frames, fps: float, sound: Sound | None = None) -> None:
    """Write a clip as H.264 (`.mp4`) or VP9 (`.webm`), 4:2:0; odd sizes grow by one row or column.

    Sound, if there is any, is written as AAC or Opus, and begins with the first frame.
    """
    format, format_options, codec, codec_options = _VIDEO[_suffix(path, *_VIDEO)]
    _, height, width, _ = frames_THWC.shape
    frames_THWC = np.pad(frames_THWC, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    with _atomic(path) as temporary, av.open(str(temporary), "w", format, options=format_options) as container:
        stream = container.add_stream(codec, Fraction(fps).limit_denominator(1001), options=codec_options)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames_THWC.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for name, value in _COLOURS.items():
            setattr(stream.codec_context, name, value)
        mux_sound = None if sound is None else _sound_track(container, path, sound)
        for frame_HWC in np.ascontiguousarray(frames_THWC):
            frame = av.VideoFrame.from_ndarray(frame_HWC, format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709, threads=1)))
        container.mux(stream.encode())
        if mux_sound is not None:
            mux_sound()


def _sound_track(container: Any, path: Path, sound: Sound) -> Callable[[], None]:
    """Add a stream of sound, and return what writes it; streams are added before anything is written.

    A codec has some rates only: sound of another is written at the next higher one.
    """
    codec, format = _AUDIO[_suffix(path, *_AUDIO)]
    known = [rate for rate in av.Codec(codec, "w").audio_rates or () if rate in _PLAYED_RATES]
    rate = min((rate for rate in known if rate >= sound.rate), default=max(known))
    layout = "mono" if sound.samples.shape[1] == 1 else "stereo"
    track = container.add_stream(codec, rate, layout=layout)

    def write() -> None:
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound.samples).reshape(1, -1), "s16", layout)
        frame.sample_rate = sound.rate
        resampler = av.AudioResampler(format, layout, rate, frame_size=track.codec_context.frame_size or 1024)
        at = 0
        for resampled in (*resampler.resample(frame), *resampler.resample(None)):
            resampled.pts, resampled.time_base = at, Fraction(1, rate)
            at += resampled.samples
            container.mux(track.encode(resampled))
        container.mux(track.encode())

    return write


def numbered(path: Path, count: int) -> list[Path]:
    """Return the files of several clips: `{index}` in the name becomes 00, 01, ..."""
    if "{index}" in path.name:
        return [path.with_name(path.name.replace("{index}", f"{i:02d}")) for i in range(count)]
    if count > 1:
        raise UserError(
            f"{count} prompts cannot share one file",
            code="several-prompts-one-file",
            field="--output",
            value=str(path),
            remedy=f'name it "{path.stem}-{{index}}{path.suffix}"',
        )
    return [path]


def is_picture(path: Path) -> bool:
    """Return whether a file's name is that of a picture; refuse an unknown suffix."""
    return _suffix(path, _IMAGE, *_VIDEO) == _IMAGE


def check(path: Path, num_frames: int) -> None:
    """Refuse a file name that is unknown or does not fit the frames, before they are generated."""
    if is_picture(path) and num_frames != 1:
        raise UserError(
            f"a picture file cannot hold {num_frames} frames",
            code="image-file-for-video",
            field="output",
            value=str(path),
            remedy="name it .mp4 or .webm, or generate one frame",
        )


def require_places(paths: Sequence[Path]) -> None:
    """Create the folders of files, check that they are writable, and remove what killed processes left, before anything is generated."""
    for path in paths:
        with files.writing("output", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp").close()
    for path in {(path.parent, path.suffix): path for path in paths}.values():
        files.sweep(path, files.UNHELD_SECONDS)


def write(path: Path, frames_THWC: Frames, fps: float, sound: Sound | None = None) -> None:
    """Write frames in the format that the suffix names; `.png` takes a single frame, and no sound."""
    check(path, len(frames_THWC))
    if is_picture(path):
        with _atomic(path) as temporary:
            Image.fromarray(frames_THWC[0]).save(temporary, format="PNG")
    else:
        write_video(path, frames_THWC, fps, sound)


def _suffix(path: Path, *known: str) -> str:
    suffix = path.suffix.lower()
    if suffix not in known:
        raise UserError(
            f'the suffix "{suffix}" names no supported format',
            code="unknown-media-suffix",
            field="output",
            value=str(path),
            remedy=nearest(suffix, known),
        )
    return suffix


def contact_sheet(
    rows: Sequence[Sequence[Frames]], labels: Sequence[Sequence[str]], *, height_px: int = 128
) -> Image.Image:
    """Draw clips by row, each as its first, middle and last frame with a caption below, cut off at their width."""
    strips = [[_strip(frames_THWC, height_px) for frames_THWC in row] for row in rows]
    columns = max(len(row) for row in strips)
    widths = [max(row[i].width for row in strips if i < len(row)) for i in range(columns)]
    line_px = height_px + _CAPTION_PX + _GAP_PX
    size = (sum(widths) + _GAP_PX * (columns + 1), line_px * len(strips) + _GAP_PX)
    sheet = Image.new("RGB", size, _PAPER)
    for y, (row, captions) in enumerate(zip(strips, labels, strict=True)):
        x_px, y_px = _GAP_PX, _GAP_PX + y * line_px
        for strip, caption, width in zip(row, captions, widths, strict=False):
            sheet.paste(strip, (x_px, y_px))
            _write_caption(sheet, caption, (x_px, y_px + height_px + 4), width)
            x_px += width + _GAP_PX
    return sheet


def _strip(frames_THWC: Frames, height_px: int) -> Image.Image:
    """Draw the first, middle and last frame side by side, or fewer if the clip has fewer."""
    count, height, width, _ = frames_THWC.shape
    shown = sorted({0, count // 2, count - 1})
    width_px = max(1, round(width * height_px / height))
    strip = Image.new("RGB", ((width_px + 2) * len(shown) - 2, height_px), _PAPER)
    for column, index in enumerate(shown):
        frame = Image.fromarray(frames_THWC[index]).resize((width_px, height_px), Image.Resampling.LANCZOS)
        strip.paste(frame, (column * (width_px + 2), 0))
    return strip


def _write_caption(sheet: Image.Image, text: str, place: tuple[int, int], width_px: int) -> None:
    if lettering.width(text, _FONT_PX) > width_px:
        fitting = bisect.bisect(
            range(len(text)), width_px, key=lambda n: math.ceil(lettering.width(f"{text[:n]}...", _FONT_PX))
        )
        text = f"{text[: max(fitting - 1, 0)].rstrip()}..."
    lettering.write(ImageDraw.Draw(sheet), place, text, _FONT_PX, _INK)
