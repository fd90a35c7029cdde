"""Turn frames of two fields into whole ones, one for one, with FFmpeg's bwdif."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import av
from av.filter import Graph

Numbered = tuple[int, av.VideoFrame]  # a frame with its time or number


def progressive(frames: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield frames in order, each interlaced one rebuilt from its fields and those of its neighbours.

    Frames that are not marked as interlaced pass unchanged. A rebuilt frame comes after its successor was read.
    """
    graph: Graph | None = None
    waiting: deque[int] = deque()
    for key, frame in frames:
        if graph is None and not frame.interlaced_frame:
            yield key, frame
            continue
        graph = graph or _graph(frame)
        waiting.append(key)
        graph.vpush(frame)
        yield from _finished(graph, waiting)
    if graph is not None:
        graph.vpush(None)
        yield from _finished(graph, waiting)


def _graph(frame: av.VideoFrame) -> Graph:
    graph = Graph()
    graph.threads = 1  # clips are decoded in parallel
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base, name="source"
    )
    graph.link_nodes(
        source, graph.add("bwdif", "mode=send_frame:deint=interlaced"), graph.add("buffersink")
    ).configure()
    return graph


def _finished(graph: Graph, waiting: deque[int]) -> Iterator[Numbered]:
    while waiting:
        try:
            frame = graph.vpull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        yield waiting.popleft(), frame
