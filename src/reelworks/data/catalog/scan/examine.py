"""Examine one file: read its caption, fingerprint and measure it, and cut it into clips."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from reelworks.core import retry
from reelworks.data.catalog.scan import caption_texts, clip_ranges, probe_pool
from reelworks.data.catalog.scan.caption_names import NO_FILES, CaptionFiles
from reelworks.data.catalog.scan.caption_texts import Unsettled
from reelworks.data.catalog.scan.clip_ranges import ClipRange
from reelworks.data.media import frame_index, frame_times, location, probe, storages
from reelworks.data.media.formats import ProbeError, kind_of
from reelworks.data.media.frame_index import PackedTimes
from reelworks.data.media.location import MediaPath

ASKED = retry.Asked()  # by this process
_Once = Callable[[Callable[[MediaPath], Any], MediaPath], Any]
# Far above what healthy files take on a slow disk that many processes share; scenes are found by a network.
_SECONDS, _SECONDS_PER_BYTE, _TIMES_FOR_SCENES = 120.0, 4e-6, 10
# In which as many questions to a silent storage end as say that it is away, so that it is not taken for a decoder that hangs,
# and one waits for a storage that is busy.
_STORAGE_SECONDS = 480.0 + retry.BUSY_SECONDS_OF_SCANS


class FileRequest(NamedTuple):
    """A request to examine one file."""

    file: MediaPath
    captions: CaptionFiles | None  # its caption files; None if those beside it are to be looked for
    open: bool  # whether to open the file; otherwise only its caption is read
    known: str  # fingerprint of the content at the last scan, which need not be measured again
    problem: str | None = None  # found by the listing; the file is then not opened
    stated: probe.Probe | None = None  # measures of a trusted list
    state: str = ""  # text of what the file is known by; its fingerprint if measures are `stated`
    cut: str = ""  # how to cut the file into clips
    clip: str = ""  # text of the only clip that is wanted of it; "" for all
    size_bytes: int = 0


class Finding(NamedTuple):
    """Result of examining one file."""

    caption: str | Unsettled | None  # text of the caption file, None if there is no such file
    fingerprint: str | None  # fingerprint of the content; None if the file was not opened, "" if it could not be read
    probe: probe.Probe | None = None  # measures; None if the content is known, or after an error
    error: str | None = None  # why the file cannot be trained on; only for files that were opened
    times: PackedTimes | None = None  # frame times of a long video, in the first finding of its clips
    clips: tuple[ClipRange, ...] = ()  # ranges that are clips of their own; none for a whole file
    missing_on: str = ""  # name of the node of a cluster that does not see the file


def examine(requests: Sequence[FileRequest]) -> list[Finding]:
    """Examine one file for each of its clips that are wanted; any problem with it becomes `Finding.error`.

    A storage that does not answer is asked again, unless it is away for many files.
    """
    once: _Once = lru_cache(maxsize=None)(lambda measure, path: measure(path))
    packed = lru_cache(maxsize=None)(lambda path: frame_index.pack(once(frame_times.read, path)))
    found = [_examine(request, once, packed) for request in requests]
    first = next((i for i, finding in enumerate(found) if finding.times is not None), 0)
    return [finding if i <= first else finding._replace(times=None) for i, finding in enumerate(found)]


def _examine(request: FileRequest, once: _Once, packed: Callable[[MediaPath], PackedTimes | None]) -> Finding:
    if request.problem is not None:
        return Finding(None, "", error=request.problem)
    try:
        return ASKED(lambda: _read(request, once, packed))
    except OSError as error:
        return Finding(None, "", error=storages.problem(error))


def _read(request: FileRequest, once: _Once, packed: Callable[[MediaPath], PackedTimes | None]) -> Finding:
    captions = caption_texts.files_beside(request.file) if request.captions is None else request.captions
    caption = caption_texts.read(request.file, captions) if captions != NO_FILES else None
    if not request.open:
        return Finding(caption, None)
    if request.stated is not None:
        return Finding(caption, request.state, request.stated)
    fingerprint = ""
    try:
        with location.local(request.file) as path:
            fingerprint = once(location.fingerprint, path)
            if fingerprint == request.known:
                return Finding(caption, fingerprint)
            measured = once(probe.probe, path)
            long = measured.duration_seconds >= frame_index.FROM_SECONDS and measured.kind == kind_of(path.name)
            times = packed(path) if long else None
            read_times = partial(once, frame_times.read, path)
            clips = clip_ranges.find(path, request.cut, request.clip, read_times) if request.cut else ()
            return Finding(caption, fingerprint, measured, times=times, clips=clips)
    except ProbeError as error:
        lasts = not isinstance(error.__cause__, ImportError)  # a package may be installed later
        return Finding(caption, fingerprint if lasts else "", error=str(error))


def examine_on_node(requests: Sequence[FileRequest]) -> list[Finding]:
    """Examine one file on a node of a cluster, which may not see the files that the listing has found."""
    found, first = examine(requests), requests[0]
    is_unread = first.problem is None and any(finding.fingerprint == "" for finding in found)
    if is_unread and location.is_missing(first.file):
        return [finding._replace(missing_on=socket.gethostname()) for finding in found]
    return found


def failed(requests: Sequence[FileRequest], reason: str) -> list[Finding]:
    """Return the results for a file on which the decoder crashed or hung, or its storage; the next scan examines it again."""
    if reason != probe_pool.CRASHED and not (
        any(request.open for request in requests) and location.is_here(requests[0].file)
    ):
        reason = f"{storages.UNREACHED}: {reason}"
    return [Finding(None, "", error=reason)] * len(requests)


def most_seconds(files: Sequence[Sequence[FileRequest]]) -> float:
    """Return how long the examination of these files may take before it counts as hung."""
    is_remote = any(location.is_remote(request.file) for requests in files for request in requests)
    seconds = _SECONDS + (_STORAGE_SECONDS if is_remote else 0)
    return seconds + _SECONDS_PER_BYTE * sum(
        request.size_bytes * (_TIMES_FOR_SCENES if request.cut.startswith(clip_ranges.SCENES) else 1)
        for requests in files
        for request in requests
        if request.open
    )
