"""Contact sheets: clips of one bucket as training reads them, with the part that the crop removes, and their index page."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from reelworks.core import files, log, units
from reelworks.core.shape import Shape
from reelworks.data.loader import position
from reelworks.data.media import lettering
from reelworks.data.media.decode import BLACK, Frames
from reelworks.data.schedule.plan import Samples
from reelworks.reports import page
from reelworks.training.coverage import contact_sheet
from reelworks.training.coverage.contact_sheet import SampleView
from reelworks.training.plan import discarded, plan_forecast
from reelworks.training.plan.discarded import CroppedClip
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from reelworks.data.loader.micro_batch import MicroBatchRequest
    from reelworks.training.loop.replay import Replay

_WORST = 20
_HEIGHT_PX = 130
_WIDTH_PX = 210
_GAP_PX = 12
_TEXT_PX = 14
_FRAMES = 5
_PAGE, _INK, _QUIET, _MARK = (247, 247, 244), (22, 22, 26), (110, 108, 103), (42, 120, 214)
_MASKED = (205, 40, 90)
_TINT = 0.7
_DIM = 0.35


def draw(views: list[SampleView], shape: Shape) -> bytes:
    """Draw clips one below the other, as a PNG file.

    Each line shows the full first frame with the crop's window, then frames as training reads them, and below them the
    same frames of the companions.
    """
    lines = [_line(view, shape) for view in views]
    width = max(line.width for line in lines) + 2 * _GAP_PX
    height = sum(line.height + _GAP_PX for line in lines) + _GAP_PX
    sheet = Image.new("RGB", (width, height), _PAGE)
    top = _GAP_PX
    for line in lines:
        sheet.paste(line, (_GAP_PX, top))
        top += line.height + _GAP_PX
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def frames_shown(num_frames: int) -> list[int]:
    """Return the indices of the frames that a sheet shows, first and last included."""
    numbers: list[int] = np.unique(np.linspace(0, num_frames - 1, _FRAMES).round().astype(int)).tolist()
    return numbers


def _line(view: SampleView, shape: Shape) -> Image.Image:
    rows = _rows(view)
    texts = [(view.path, _INK), (_facts(view, shape), _QUIET)]
    widths = [int(lettering.width(text, _TEXT_PX)) + 1 for text, _ in texts]
    width = max(sum(p.width + _GAP_PX // 2 for p in rows[0]) + _GAP_PX, *widths)
    heights = [max((p.height for p in row), default=0) for row in rows]
    line = Image.new("RGB", (width, sum(heights) + (len(rows) - 1) * _GAP_PX // 2 + 3 * _TEXT_PX + 4), _PAGE)
    pen = ImageDraw.Draw(line)
    for number, (text, colour) in enumerate(texts):
        lettering.write(pen, (0, number * (_TEXT_PX + 4)), text, _TEXT_PX, colour)
    top = 2 * (_TEXT_PX + 4) + 4
    for row, height in zip(rows, heights, strict=True):
        left = 0
        for number, picture in enumerate(row):
            line.paste(picture, (left, top))
            left += picture.width + (_GAP_PX if number == 0 else _GAP_PX // 2)
        top += height + _GAP_PX // 2
    return line


def _rows(view: SampleView) -> list[list[Image.Image]]:
    """Return rows of pictures at one scale: first frame with window and frames as read, then each companion."""
    if view.whole is None or view.frames is None:
        return [[]]
    scale = min(_HEIGHT_PX / view.whole.shape[0], _WIDTH_PX / view.whole.shape[1])
    first = _scaled(with_window(view.whole, view.window), scale)
    top, left, height, width = (round(edge * scale) for edge in view.window)
    ImageDraw.Draw(first).rectangle((left, top, left + width - 1, top + height - 1), outline=_MARK, width=2)
    rows = [[first, *_some(view.frames, scale)]]
    for companion in view.beside:
        is_mask = companion.kind == "loss_mask"
        frames = masked(view.frames, companion.frames) if is_mask else companion.frames
        # In the place of the full first frame.
        text = companion.kind.replace("_", " ")
        wide = int(lettering.width(text, _TEXT_PX)) + 1
        label = Image.new("RGB", (max(first.width, wide), _TEXT_PX + 4), _PAGE)
        lettering.write(ImageDraw.Draw(label), (label.width - wide, 0), text, _TEXT_PX, _INK)
        rows.append([label, *_some(frames, scale)])
    return rows


def _some(frames: Frames, scale: float) -> list[Image.Image]:
    return [_scaled(frames[i], scale) for i in frames_shown(len(frames))]


def _facts(view: SampleView, shape: Shape) -> str:
    if view.error:
        return f"cannot be trained: {view.error}"
    # An x, since fonts may have no multiplication sign.
    sizes = f"{view.source.width} x {view.source.height} to {shape.width} x {shape.height}"
    text = f"{sizes}, {view.lost:.1%} cropped away"
    if view.source.num_frames == 1:
        return text
    last = view.first_frame + int((shape.num_frames - 1) * view.step + 1e-6)
    every = "" if view.step == 1 else f", {view.step:.3g} apart"
    return f"{text}, frames {view.first_frame} to {last} of {view.source.num_frames}{every}"


def with_window(whole_HWC: NDArray[np.uint8], window: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """Darken the part of a frame that the crop removes."""
    top, left, height, width = window
    shown = (whole_HWC * _DIM).astype(np.uint8)
    inside = (slice(top, top + height), slice(left, left + width))
    shown[inside] = whole_HWC[inside]
    return shown


def masked(frames_THWC: Frames, mask_THWC: Frames) -> Frames:
    """Tint frames in proportion to what a loss mask leaves out."""
    grey_THW1 = mask_THWC.mean(axis=-1, keepdims=True)
    tint = _TINT * np.where(grey_THW1 < BLACK, 1.0, 1 - grey_THW1 / 255)
    return (frames_THWC * (1 - tint) + np.array(_MASKED) * tint).astype(np.uint8)


def _scaled(frame_HWC: NDArray[np.uint8], scale: float) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(frame_HWC))
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    return image.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)


@dataclass(frozen=True)
class CompanionPath:
    """A companion that a sheet shows beside its clip."""

    kind: str
    path: str


@dataclass(frozen=True)
class ShownClip:
    """A clip on a sheet; `lost` is the share of the frame's area that is cropped, `error` why it cannot be trained."""

    path: str
    caption: str
    error: str
    beside: list[CompanionPath]
    lost: float
    first_frame: int


@dataclass(frozen=True)
class BucketSheet:
    """The sheet of a bucket: a file's name, and the shares of the frame's area that are cropped from all of its clips."""

    name: str
    shape: str
    sheet: str
    clips: int
    mean_lost: float
    max_lost: float
    shown: list[ShownClip]


@dataclass(frozen=True)
class ContactSheets:
    """Contact sheets and their page.

    Attributes:
        worst: The clips that lose most to the crop.
        beside: Kinds of the companions shown.
        short_clips: Number of videos that are shorter than their bucket.
    """

    index: Path
    buckets: list[BucketSheet]
    worst: list[CroppedClip]
    beside: list[str]
    short_clips: int


def write_page(recipe: Recipe, folder: Path, clips: int) -> ContactSheets:
    """Draw a sheet of some clips of each bucket that the first epoch trains, and `index.html`; the catalog must exist."""
    data = plan_forecast.settled(RecipeData.open(recipe))
    begun, _ = position.next_epoch(data, plan_forecast.plan_spec(data), None)
    entries = discarded.planned(begun.plan)
    row = data.rows_at(entries.ordinal)
    lost = discarded.lost_shares(data, row, entries.bucket)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        buckets: list[BucketSheet] = []
        drawn = np.unique(entries.bucket).tolist()
        with log.stage("drawing contact sheets", lambda: f"{len(buckets)} of {units.plural(len(drawn), 'bucket')}"):
            for index in drawn:
                where = np.flatnonzero(entries.bucket == index)
                buckets.append(_draw_bucket(data, entries.take(where), lost[where], begun.epoch, folder, clips))
        _, short_clips = discarded.frames(data, row, entries.bucket)
        sheets = ContactSheets(
            index=folder / "index.html",
            buckets=buckets,
            worst=discarded.worst(data, row, entries.bucket, lost, _WORST),
            beside=sorted({one.kind for bucket in buckets for clip in bucket.shown for one in clip.beside}),
            short_clips=short_clips,
        )
        text = page.render("contact_sheet.html", figures=[], name=Path(recipe.output).name, sheets=sheets)
        files.write_bytes(sheets.index, text.encode())
    except OSError as error:
        raise files.unwritable("--output", folder, error) from error
    return sheets


def _draw_bucket(
    data: RecipeData, entries: Samples, lost: NDArray[np.float64], epoch: int, folder: Path, clips: int
) -> BucketSheet:
    bucket = data.table.buckets[int(entries.bucket[0])]
    chosen = contact_sheet.choose(data, entries, lost, clips)
    views = contact_sheet.sample_views(data, entries.take(chosen), lost[chosen], epoch=epoch)
    name = re.sub(r"[^\w.-]+", "-", bucket.name.replace("×", "x").replace(":", "by")).strip("-") + ".png"
    files.write_bytes(folder / name, draw(views, bucket.shape))
    shown = list(map(_shown, views))
    return BucketSheet(bucket.name, str(bucket.shape), name, len(entries), float(lost.mean()), float(lost.max()), shown)


def _shown(view: SampleView) -> ShownClip:
    beside = [CompanionPath(companion.kind, companion.path) for companion in view.beside]
    return ShownClip(view.path, view.caption, view.error, beside, view.lost, view.first_frame)


def write_step(replay: Replay, folder: Path) -> list[Path]:
    """Draw a sheet for each micro-batch of a replayed step, `column-0000.png`, in the plan's order.

    Clips are read again from their files; the sheet names those that cannot be read.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for request in replay.columns:
            written.append(folder / f"column-{request.index:04d}.png")
            files.write_bytes(written[-1], draw(step_views(replay, request), request.shape))
    except OSError as error:
        raise files.unwritable("--output", folder, error) from error
    return written


def step_views(replay: Replay, request: MicroBatchRequest) -> list[SampleView]:
    """Return the clips of a micro-batch as training read them, without copies that only pad."""
    uid, copy = request.uids[request.real], request.draw_copies[request.real]
    row = replay.data.rows.find(uid)
    entries = Samples(uid, copy, replay.data.rows.ordinal[row], 0 * row + request.bucket)
    lost = discarded.lost_shares(replay.data, row, entries.bucket)
    return contact_sheet.sample_views(replay.data, entries, lost, epoch=request.epoch)
