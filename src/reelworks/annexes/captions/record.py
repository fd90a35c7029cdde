"""The record of captions: JSON lines that are only appended, beside the captions that they tell of.

    {"run": ID, "began": TIME, "program": VERSION, "how": {…}, "captioner": {…}}
    {"run": ID, "at": TIME, "clip": PATH, "file": NAME, "captions": […], "former": TEXT, …}
    {"run": ID, "at": TIME, "no_caption": PATH, "reason": TEXT, …}     of a clip that got none
    {"run": ID, "list": DIGEST, "root": FOLDER}                        of a list that is about to be written
    {"run": ID, "ended": TIME, "captioned": N, "failed": N}            missing if it was killed
    {"run": ID, "undone": TIME, "files": [NAME, …]}                    of caption files that have their former text again

A line is durable before its caption file is written. So of a run that was killed, the last line may tell of a caption that
is not there yet, and no file changes without a line that has its former text.
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from reelworks.annexes.captions.clips import CaptionClip
from reelworks.core import digests, files, storage, system, text_encoding, user_files, version
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan import caption_texts
from reelworks.data.run.lock import LockHandle

NAME = ".reelworks-captions.jsonl"
_MOST_BYTES = 16 << 30
Runs = Literal["all", "alike", "continued"]


class ClipKey(NamedTuple):
    """A clip in the state in which it was captioned."""

    path: str
    range: str
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of_clip(cls, clip: CaptionClip) -> ClipKey:
        """Return the key of a clip as it is now."""
        return cls(f"{clip.root}/{clip.path}", clip.range, clip.size_bytes, clip.mtime_ns)


class CaptionRecord:
    """A record that is open for appending, whose former lines have been read.

    Args:
        file: Place of the record, which need not exist.
        how: Captioner and options of the run that begins; one with the same that was not completed is continued.
        held: Lock on the record's folder, which is checked before anything is written; None for a record that is only read.

    Attributes:
        captioner: What the captioner of the run says about itself.
    """

    def __init__(self, file: Path, how: dict[str, Any] | None, held: LockHandle | None) -> None:
        self.file, self._how, self._held = file, how, held
        self.captioner: dict[str, Any] = {}
        self._digest = None if how is None else digests.digest_json(how)
        self._lines = _read(file)
        began = [line for line in self._lines if "began" in line]
        self._last: str | None = began[-1]["run"] if began else None
        done = {line["run"] for line in self._lines if "ended" in line and not line.get("failed")}
        # A run that goes on is still the same, so that it can be undone as a whole.
        continues = bool(began) and _digest_of(began[-1]) == self._digest and self._last not in done
        self._run = self._last if continues else None

    def answers(self, runs: Runs) -> dict[ClipKey, list[str]]:
        """Return the latest captions of clips by some runs.

        Args:
            runs: "all"; "alike", those with the same options; or "continued", only the last one, and only if it has the
                same options and was not completed, or left clips without a caption.
        """
        alike = {line["run"] for line in self._lines if "began" in line and _digest_of(line) == self._digest}
        some = {self._run} if runs == "continued" else alike
        of_clips = (line for line in self._lines if "clip" in line and (runs == "all" or line["run"] in some))
        return {_key(line): line["captions"] for line in of_clips}

    def failed(self) -> set[ClipKey]:
        """Return the clips that got no caption in some run."""
        return {_key(line) for line in self._lines if "no_caption" in line}

    def settle(self, places: Collection[Path]) -> Path | None:
        """Write the caption that a killed run had answered but not yet written; returns its file, None for none.

        Args:
            places: Caption files of the clips that there are: a record that came with the data can name no others.
        """
        line = self._lines[-1] if self._lines else {}
        place = None if line.get("file") is None else _place(self.file, line)
        if place is None or place not in places or _raw(place) != _former(line):
            return None
        self._require_lock()
        files.write_bytes(place, text_of(line["captions"]))
        return place

    def lists(self) -> dict[str, str]:
        """Return the folders that paths are relative to, by the digests of lists that runs wrote, or were about to."""
        return {str(line["list"]): str(line.get("root")) for line in self._lines if "list" in line}

    def add_list(self, digest: str, root: str) -> None:
        """Append the digest of a list durably, before it is written, so that it is known again."""
        self._append({"run": self._begun(), "list": digest, "root": root})

    def add_failure(self, clip: CaptionClip, reason: str) -> None:
        """Append that a clip got no caption, so that the next run asks for others first."""
        self._append(
            {"run": self._begun(), "at": time.time(), "no_caption": clip.path, "reason": reason} | _state(clip)
        )

    def add(self, clip: CaptionClip, captions: Sequence[str], place: Path | None) -> None:
        """Append the captions of a clip durably, before they are written to `place`, and its former text."""
        raw = None if place is None else _raw(place)
        former = _as_json(raw) if place is not None else {"former": clip.caption}
        line = {"run": self._begun(), "at": time.time(), "clip": clip.path} | _state(clip)
        line |= {"file": None if place is None else Path(os.path.relpath(place, self.file.parent)).as_posix()}
        self._append(line | {"captions": list(captions)} | former)

    def end(self, *, captioned: int, failed: int) -> None:
        """Append that the run has ended, if there is one."""
        if self._run is not None:
            self._append({"run": self._run, "ended": time.time(), "captioned": captioned, "failed": failed})

    def undo(self, places: Collection[Path]) -> list[tuple[Path, bool]]:
        """Put back the texts that were there before the last run of these files; returns each, and whether it was changed.

        A file that has changed since is left as it is. A caption file that was not there before is removed.

        Args:
            places: Caption files of the clips that there are.
        """
        mine = [line for line in self._lines if line.get("file") is not None and _place(self.file, line) in places]
        of_run = [line for line in mine if line["run"] == mine[-1]["run"]]
        result = []
        for line in reversed(of_run):
            place, former = _place(self.file, line), _former(line)
            is_ours = _raw(place) == text_of(line["captions"])
            self._require_lock()
            if is_ours and former is None:
                storage.unlink(place)
                storage.fsync_folder(place.parent)
            elif is_ours:
                files.write_bytes(place, former or b"")
            result.append((place, is_ours))
        if of_run:
            names = sorted({line["file"] for line in of_run})
            self._append({"run": of_run[-1]["run"], "undone": time.time(), "files": names})
        return result

    def _begun(self) -> str:
        if self._run is None:
            self._run = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:6]
            began = {"run": self._run, "began": time.time(), "program": version.__version__}
            self._append(began | {"how": self._how, "captioner": self.captioner})
        return self._run

    def _require_lock(self) -> None:
        assert self._held is not None, "a record that is only read"
        self._held.check()

    def _append(self, line: dict[str, Any]) -> None:
        self._require_lock()
        files.append_json_line(self.file, line)
        fd = os.open(self.file, os.O_RDWR | system.BINARY)
        try:
            storage.fsync(fd, self.file)
        finally:
            os.close(fd)
        if "began" in line:
            storage.fsync_folder(self.file.parent)


def text_of(captions: Sequence[str]) -> bytes:
    """Return the content of a caption file: a line for each caption."""
    return ("\n".join(captions) + "\n").encode()


def is_captioned(place: Path) -> bool:
    """Return whether a caption file has a text now that is more than a word for nothing."""
    text = (_raw(place) or b"").decode(errors="replace").strip()
    return not text_encoding.is_blank(text) and not caption_texts.is_null(text)


def _read(file: Path) -> list[dict[str, Any]]:
    """Return all lines that are whole and of the expected kind."""
    try:
        user_files.require(file, _MOST_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"the record of captions cannot be read ({error.strerror})",
            code="file-unreadable",
            field="DATA",
            value=str(file),
            remedy="check its permissions, or move it away",
        ) from error
    return _without_undone(line for line in files.read_json_lines(file) if _is_valid(line))


def _without_undone(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out captions that were undone, and runs of which nothing else is left."""
    left: list[dict[str, Any]] = []
    for line in lines:
        left.append(line)
        if "undone" in line:
            left = [one for one in left if one["run"] != line["run"] or one.get("file") not in line["files"]]
            if not any("clip" in one for one in left if one["run"] == line["run"]):
                left = [*(one for one in left if one["run"] != line["run"]), line]
    return left


def _is_valid(line: dict[str, Any]) -> bool:
    if not isinstance(line.get("run"), str):
        return False
    if "no_caption" in line:
        return _has_state(line, "no_caption")
    if "clip" not in line:
        return "undone" not in line or isinstance(line.get("files"), list)
    captions, file = line.get("captions"), line.get("file")
    has_texts = isinstance(captions, list) and captions and all(isinstance(text, str) for text in captions)
    return bool(has_texts) and _has_state(line, "clip") and (file is None or isinstance(file, str))


def _state(clip: CaptionClip) -> dict[str, Any]:
    return {"root": clip.root, "range": clip.range, "size_bytes": clip.size_bytes, "mtime_ns": clip.mtime_ns}


def _has_state(line: dict[str, Any], path: str) -> bool:
    sizes = all(isinstance(line.get(name), int) for name in ("size_bytes", "mtime_ns"))
    return sizes and all(isinstance(line.get(name), str) for name in (path, "root", "range"))


def _digest_of(began: dict[str, Any]) -> str:
    return digests.digest_json(began.get("how"))


def _key(line: dict[str, Any]) -> ClipKey:
    path = line["clip"] if "clip" in line else line["no_caption"]
    return ClipKey(f"{line['root']}/{path}", line["range"], line["size_bytes"], line["mtime_ns"])


def _place(record: Path, line: dict[str, Any]) -> Path:
    return Path(os.path.normpath(record.parent / line["file"]))


def _raw(place: Path) -> bytes | None:
    try:
        return user_files.read_bytes(place, user_files.CAPTION)
    except FileNotFoundError:
        return None


def _as_json(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        return {"former": None}
    try:
        return {"former": raw.decode()}
    except UnicodeDecodeError:
        return {"former_base64": base64.b64encode(raw).decode()}


def _former(line: dict[str, Any]) -> bytes | None:
    if "former_base64" in line:
        return base64.b64decode(str(line["former_base64"]))
    former = line.get("former")
    return None if former is None else str(former).encode()
