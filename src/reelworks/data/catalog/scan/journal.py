"""Keep what a scan has found so far, so that one that is killed goes on where it was.

The journal is a file in the catalog's folder with a JSON line for each file that was opened. The next scan takes a
line if path, place, size, time of change and known content of the file are the same, and removes the journal when the
catalog has the rows. Caption files are read again, since a line does not depend on them.
"""

from __future__ import annotations

import base64
import json
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from reelworks.core import digests
from reelworks.data.catalog.scan.clip_ranges import ClipRange
from reelworks.data.catalog.scan.examine import FileRequest, Finding
from reelworks.data.media.frame_index import PackedTimes
from reelworks.data.media.probe import MEASURES, VERSION, Probe

NAME = "unfinished-scan.jsonl"
_FORMAT = 2
_STOPPED = b"\n"  # line of a scan that an error or a person has stopped
_SECONDS_BETWEEN_WRITES = 1.0
_BUFFER_BYTES = 1 << 20


def _key(request: FileRequest) -> str:
    """Return 16 hexadecimal digits that differ for another state of the file, and for another cut."""
    return digests.digest_json([str(request.file), request.state, request.known, request.cut, request.clip])[:16]


class ScanJournal:
    """Findings of an unfinished scan; only the holder of the catalog's lock may use it.

    Attributes:
        known: Number of findings that the journal had when it was opened.
        died: Whether the process of the last scan died in it, of a decoder's crash or whatever else.
    """

    def __init__(self, folder: Path) -> None:
        """Open the journal in a catalog's folder, or begin one; what cannot be read of it is dropped."""
        self._path = folder / NAME
        self.died = False
        keys, offsets, end = array("Q"), array("Q"), 0
        about = {"format": _FORMAT, "reader": VERSION, "measures": [*MEASURES, *ClipRange._fields]}
        header = json.dumps(about).encode() + b"\n"
        with suppress(FileNotFoundError), self._path.open("rb") as stored:
            first = stored.readline()
            self.died, end = first in (b"", header), len(header) if first == header else 0
            for line in stored if end else ():
                if not line.endswith(b"\n"):  # the scan was killed while it wrote
                    break
                self.died = line != _STOPPED
                if not self.died:  # which is dropped, so that this scan, if it dies, ends with a finding or the header
                    break
                keys.append(int(line[:16], 16))
                offsets.append(end)
                end += len(line)
        unordered = np.array(keys, dtype=np.uint64)
        order = np.argsort(unordered, kind="stable")
        self._keys, self._offsets = unordered[order], np.array(offsets, dtype=np.uint64)[order]
        self.known = len(self._keys)
        self._file = self._path.open("r+b" if end else "w+b", buffering=_BUFFER_BYTES)
        self._file.truncate(end)
        self._file.seek(end)
        if not end:
            self._file.write(header)
        self._reader = self._path.open("rb")
        self._written = time.monotonic()

    def get(self, request: FileRequest) -> dict[str, Any] | None:
        """Return what an earlier scan found in a file, as fields of a `examine.Finding`; None if nothing."""
        if not self.known or not request.open or request.stated is not None:
            return None
        key = np.uint64(int(_key(request), 16))
        at = int(np.searchsorted(self._keys, key))
        if at == self.known or self._keys[at] != key:
            return None
        self._reader.seek(int(self._offsets[at]))
        with suppress(ValueError, TypeError, KeyError):  # a damaged line is as good as none
            found = json.loads(self._reader.readline()[16:])
            if found.pop("file") == str(request.file):
                probe, times = found["probe"], found["times"]
                found["probe"] = None if probe is None else Probe(*probe)
                found["clips"] = tuple(ClipRange(*clip) for clip in found["clips"])
                if times is not None:
                    ticks, keys = (base64.b64decode(text) for text in times[:2])
                    found["times"] = PackedTimes(ticks, keys, times[2])
                return dict(found)
        return None

    def add(self, request: FileRequest, finding: Finding) -> None:
        """Keep what was found in a file; it is written within a second or so."""
        measures, times = finding.probe, finding.times
        found = {
            "file": str(request.file),
            "fingerprint": finding.fingerprint,
            "error": finding.error,
            "probe": None if measures is None else list(measures.values().values()),
            "times": times and [base64.b64encode(t).decode() for t in times[:2]] + [times.tick_seconds],
            "clips": finding.clips,
        }
        self._file.write(f"{_key(request)}{json.dumps(found)}\n".encode())
        if time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self._file.flush()
            self._written = time.monotonic()

    def __enter__(self) -> ScanJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the journal of a scan that has ended well; else write what is left of it, and that it was stopped."""
        self._file.write(_STOPPED)
        self._file.close()
        self._reader.close()
        if kind is None:
            self._path.unlink(missing_ok=True)
