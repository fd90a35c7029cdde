"""Change decoded frames by FFmpeg's own filters: cut off what is not shown, and turn frames of two fields into whole ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import av
from av.filter import Graph

from reelworks.data.media.containers import ShownArea

Numbered = tuple[int, av.VideoFrame]  # a frame with its time or number


def progressive(frames: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield frames in order, one for one, each interlaced one rebuilt from its fields and those of its neighbours.

    Frames that are not marked as interlaced pass unchanged. A rebuilt frame comes after its successor was read.
    """
    graph: Graph | None = None
    waiting: deque[int] = deque()
    for key, frame in frames:
        if graph is None and not frame.interlaced_frame:
            yield key, frame
            continue
        graph = graph or _filtered(frame, "bwdif", "mode=send_frame:deint=interlaced")
        waiting.append(key)
        graph.vpush(frame)
        yield from _finished(graph, waiting)
    if graph is not None:
        graph.vpush(None)
        yield from _finished(graph, waiting)


def _filtered(frame: av.VideoFrame, name: str, settings: str) -> Graph:
    """Return a filter for frames like this one."""
    graph = Graph()
    graph.threads = 1  # clips are decoded in parallel
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base, name="source"
    )
    graph.link_nodes(source, graph.add(name, settings), graph.add("buffersink")).configure()
    return graph


def _finished(graph: Graph, waiting: deque[int]) -> Iterator[Numbered]:
    while waiting:
        try:
            frame = graph.vpull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        yield waiting.popleft(), frame


class Cropping:
    """Cuts frames to the part that is shown, without a copy of the pixels."""

    def __init__(self, crop: ShownArea) -> None:
        self._settings = f"{crop.width}:{crop.height}:{crop.left}:{crop.top}"
        self._graph, self._of = Graph(), (0, 0, "")

    def __call__(self, frame: av.VideoFrame) -> Any:
        """Return the part of a frame that is shown."""
        kind = (frame.width, frame.height, frame.format.name)
        if kind != self._of:
            self._graph, self._of = _filtered(frame, "crop", self._settings), kind
        self._graph.vpush(frame)
        return self._graph.vpull()
