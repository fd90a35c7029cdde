"""What a worker of a scan does with one file; runs in threads and in spawned processes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from reelworks.catalog import captions, probe
from reelworks.core import digests


class Look(NamedTuple):
    """An order to look at a file.

    Attributes:
        file: Absolute path.
        captioned: Read the caption file beside it.
        open: Open the file; otherwise only its caption is read.
        known: Fingerprint of a content that need not be measured again.
        problem: What the listing already found wrong; the file is then left alone.
    """

    file: str
    captioned: bool
    open: bool
    known: str
    problem: str | None = None


class Finding(NamedTuple):
    """What was found.

    Attributes:
        caption: Caption, None where there is no file.
        fingerprint: Of the content; None if the file was not opened, "" if it could not be read.
        probe: Measures; None if there was no need, or an error.
        error: Why the file cannot be trained on; only for files that were opened.
    """

    caption: str | None
    fingerprint: str | None
    probe: probe.Probe | None = None
    error: str | None = None


def look(order: Look) -> Finding:
    """Look at one file; whatever is wrong with it becomes `Finding.error`."""
    if order.problem is not None:
        return Finding(None, "", error=order.problem)
    path = Path(order.file)
    try:
        caption = captions.read(path) if order.captioned else None
        fingerprint = digests.fingerprint_file(path) if order.open else None
    except OSError as error:
        return Finding(None, "", error=f"cannot be read: {error.strerror}")
    if fingerprint is None or fingerprint == order.known:
        return Finding(caption, fingerprint)
    try:
        return Finding(caption, fingerprint, probe.probe(path))
    except probe.ProbeError as error:
        return Finding(caption, fingerprint, error=error.reason)


def crashed(order: Look) -> Finding:
    """Say of a file that the process which looked at it died; the next scan looks again."""
    return Finding(None, "", error="the decoder crashed on it")
