"""Small pictures and loops of clips as training reads them, decoded in processes that may hang or die."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np
from cachetools import LRUCache, cachedmethod
from PIL import Image

from reelworks.annexes.page.clips import EPOCH, ClipView
from reelworks.annexes.page.workspace import Workspace
from reelworks.core import digests
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.loader import decode_requests
from reelworks.data.media import location
from reelworks.data.media.decode import Frames, Request
from reelworks.data.media.decode_pool import DecodePool, Failure
from reelworks.data.media.location import Location, MediaPath
from reelworks.reports import previews
from reelworks.training.coverage import contact_sheet

Kind = Literal["thumbnail", "loop", "strip", "whole"]
_LONG_PX: dict[Kind, int] = {"thumbnail": 320, "loop": 320, "strip": 240, "whole": 1280}
_LOOP_FRAMES = 16
_STRIP_FRAMES = 5
_GAP_PX = 4
_WORKERS = 2
_TIMEOUT_SECONDS = 20.0
_CACHE_BYTES = 96 << 20
_FORMAT = 1  # raise it when the pictures of the same request change
_LEAST_MS, _MOST_MS = 40, 250  # that a frame of a loop is shown
_LOOP_FPS = 8.0  # of clips without a bucket


class Pictures:
    """Makes and keeps pictures of clips; nothing outside of the page's folders is opened.

    Args:
        cache_bytes: Most bytes of pictures that are kept.
    """

    def __init__(self, workspace: Workspace, cache_bytes: int = _CACHE_BYTES) -> None:
        self._workspace = workspace
        self._kept: LRUCache[str, bytes] = LRUCache(cache_bytes, getsizeof=len)
        self._lock = threading.Lock()
        self._pool: DecodePool | None = None

    def close(self) -> None:
        """Stop the processes that decode."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def warm(self) -> None:
        """Start a process that decodes, which takes a second or two, before the first picture is asked for."""
        if self._pool is None:
            self._open_pool().submit(Request(Path(), is_image=True, shape=Shape(1, 1, 1)))

    def tag(self, clips: ClipView, row: int, kind: Kind, companion: str | None = None) -> tuple[str, Request]:
        """Return a text that changes when a picture does, and the request to decode for it.

        Raises:
            UserError: The file is gone, unreadable, elsewhere, or outside of the folders.
        """
        request = request_of(clips, row, kind, companion)
        self.require(request.path)
        try:
            stamp = location.stamp(request.path)
        except OSError as error:
            raise UserError(
                "the file is gone",
                code="not-found",
                field="clip",
                value=str(request.path),
                remedy="scan again, so that the catalog knows it",
            ) from error
        return digests.digest_json([_FORMAT, kind, stamp, repr(request)])[:24], request

    def require(self, path: MediaPath) -> None:
        """Refuse a file that is not in one of the page's folders, links resolved, before it is looked at."""
        if location.is_remote(path):
            raise UserError(
                "the clip is not on this machine, and the page shows only files of its folders",
                code="clip-elsewhere",
                field="dataset.path",
                value=path.file,
                remedy="look at it with: reelworks contact-sheet RECIPE",
            )
        self._workspace.require(Path(path.file) if isinstance(path, Location) else path)

    @cachedmethod(attrgetter("_kept"), key=lambda _, tag, *__: tag, lock=attrgetter("_lock"))
    def picture(self, tag: str, request: Request, kind: Kind, milliseconds: int) -> bytes:
        """Return a picture as WebP; loops are animated.

        Raises:
            UserError: The file cannot be decoded.
        """
        decoded = self._open_pool().submit(request).result()
        if isinstance(decoded, Failure):
            raise unreadable_error(request.path, decoded.reason)
        assert isinstance(decoded, np.ndarray)
        return _encode(decoded, kind, milliseconds)

    def _open_pool(self) -> DecodePool:
        with self._lock:
            if self._pool is None:
                self._pool = DecodePool(_WORKERS, _TIMEOUT_SECONDS)
            return self._pool


def unreadable_error(path: MediaPath, reason: str) -> UserError:
    """Return the error for a clip that cannot be decoded."""
    return UserError(
        f"the clip cannot be shown: {reason}",
        code="clip-unreadable",
        field="clip",
        value=str(path),
        remedy="replace the file, or leave it out",
    )


def request_of(clips: ClipView, row: int, kind: Kind, companion: str | None = None) -> Request:
    """Return the request for a picture of a clip, or of a companion of it by kind."""
    if clips.data.rows.height[row] <= 0:
        reason = clips.data.rows.take(np.array([row])).error[0].as_py() or "it has no frames"
        raise unreadable_error(clips.data.rows.file(row), reason)
    request = training_request(clips, row)
    if companion is not None:
        request = _of_companion(clips, row, request, companion)
    frames = {"thumbnail": 1, "whole": 1, "loop": _LOOP_FRAMES, "strip": _STRIP_FRAMES}[kind]
    if kind == "whole" and companion is None:
        upright = replace(request.augmentation, degrees=0.0)
        request = replace(request, shape=place(clips, row, request)[2], augmentation=upright)
    return reduce_request(request, _LONG_PX[kind], frames)


def training_request(clips: ClipView, row: int) -> Request:
    """Return the request with which the first epoch reads a clip; one without a bucket is read whole."""
    if clips.bucket[row] >= 0:
        at = np.array([row])
        words = decode_requests.clip_hash(clips.data, at, clips.copy[row : row + 1], epoch=EPOCH)
        return decode_requests.decode_requests(clips.data, at, words, int(clips.bucket[row]))[0]
    rows = clips.data.rows
    height, width, count = int(rows.height[row]), int(rows.width[row]), int(rows.num_frames[row])
    frames = 1 if rows.is_image[row] else min(_LOOP_FRAMES, count)
    step = max(min(float(rows.fps[row]) / _LOOP_FPS, (count - 1) / max(frames - 1, 1)), 1.0)
    first = previews.first_frame(rows, row, max(height, width))
    return replace(first, shape=Shape(frames, height, width), step=step, size=(height, width))


def _of_companion(clips: ClipView, row: int, own: Request, kind: str) -> Request:
    found = decode_requests.companion_requests(clips.data, np.array([row]), [own]).get(kind, (None,))[0]
    if clips.bucket[row] < 0 or not isinstance(found, Request):
        raise UserError(
            "the clip has no such companion",
            code="not-found",
            field="companion",
            value=kind,
            remedy="load the page again",
        )
    return found


def place(clips: ClipView, row: int, request: Request) -> tuple[int, tuple[int, int, int, int], Shape]:
    """Return the first frame that a request reads, and top, left, height and width of its crop in a whole frame of a shape."""
    rows = clips.data.rows
    source = Shape(int(rows.num_frames[row]), int(rows.height[row]), int(rows.width[row]))
    return contact_sheet.placed(request, source)


def reduce_request(request: Request, long_px: int, frames: int) -> Request:
    """Return a request for fewer and smaller frames of the same place and crop.

    Args:
        long_px: Most pixels of the longer side.
        frames: Most frames, which are spread over those of the request.
    """
    shape, number = request.shape, min(frames, request.shape.num_frames)
    scale = min(1.0, long_px / max(shape.height, shape.width))
    small = Shape(number, max(round(shape.height * scale), 1), max(round(shape.width * scale), 1))
    request = replace(request, shape=small, thinned=shape.num_frames)
    if (found := request.frame_ticks) is None:
        return request
    chosen = np.linspace(0, shape.num_frames - 1, number).round().astype(int).tolist()
    return replace(request, frame_ticks=found._replace(ticks=tuple(found.ticks[i] for i in chosen)))


def milliseconds_of(clips: ClipView, row: int, request: Request) -> int:
    """Return how long each frame of a loop is shown, so that it is as fast as the clip."""
    return int(min(max(1000 * request.step / (float(clips.data.rows.fps[row]) or 24.0), _LEAST_MS), _MOST_MS))


def _encode(frames: Frames, kind: Kind, milliseconds: int) -> bytes:
    images = [Image.fromarray(np.ascontiguousarray(frame)) for frame in frames]
    if kind == "strip":
        strip = Image.new("RGBA", (sum(image.width + _GAP_PX for image in images) - _GAP_PX, images[0].height))
        for number, image in enumerate(images):
            strip.paste(image, (number * (image.width + _GAP_PX), 0))
        images = [strip]
    file = io.BytesIO()
    more = {"save_all": True, "append_images": images[1:], "duration": milliseconds, "loop": 0}
    images[0].save(file, "WEBP", quality=78, method=2, **(more if kind == "loop" and len(images) > 1 else {}))
    return file.getvalue()
