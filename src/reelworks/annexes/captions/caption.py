"""Caption clips: choose those that need it, ask a captioner, and write what it answers, clip by clip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from reelworks.annexes.captions import asking, caption_list, clips, prompts, record
from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.clips import CaptionClip, CaptionSource
from reelworks.annexes.captions.record import CaptionRecord, ClipKey
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.core import digests, files, units
from reelworks.core.errors import UserError
from reelworks.data.run import lock
from reelworks.data.run.lock import LockHandle

_SHOWN = 3  # captions of a dry run, and examples of any other
_FAILURES_IN_A_ROW = 20  # after which the captioner is to blame, and not the clips
_LOCK = ".reelworks-captions.lock"
# What decides what captions say, beside the prompt and the dtype.
_DECIDING = ("model", "server", "command", "trigger", "trigger_in", "max_words", "captions", "frames", "frame_size")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CaptionedClip:
    """A clip with its new captions, and the file that has them; None for a list."""

    clip: str
    captions: tuple[str, ...]
    file: str | None


@dataclass(frozen=True)
class FailedCaption:
    """A clip that has got no caption, and the reason."""

    clip: str
    reason: str


@dataclass(frozen=True)
class CaptionResult:
    """Result of captioning.

    Attributes:
        clips: Number of clips in the data.
        captioned: Number of clips with a new caption, or that would get one with `dry_run`.
        kept: Number of clips that had a caption, or whose caption was there from a run before.
        failed: Clips that got none, with the reason.
        examples: The first few clips with a new caption.
        list_file: The list that was written.
        records: Records that tell of the new captions.
        dry_run: Nothing was written.
        restored: Files that have their former text again, or are gone as before, after `undo`.
        changed_since: Files that `undo` left alone, since they were changed.
        notes: What to know before training.
    """

    clips: int
    captioned: int
    kept: int
    failed: tuple[FailedCaption, ...] = ()
    examples: tuple[CaptionedClip, ...] = ()
    list_file: str | None = None
    records: tuple[str, ...] = ()
    dry_run: bool = False
    restored: tuple[str, ...] = ()
    changed_since: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def caption(request: CaptionRequest, on_progress: Progress | None = None) -> CaptionResult:
    """Caption the clips of a request; the same call goes on where one was killed.

    Args:
        on_progress: Called with the number of clips that are done, and of all to be captioned.

    Raises:
        UserError: The data, the captioner or the place of the captions cannot be used.
    """
    sources = clips.find(request.data, request.root)
    folders = _roots(sources) if request.list is None else [str(request.list.absolute().parent)]
    with ExitStack() as stack:
        held = dict[str, LockHandle]()
        for folder in folders if not request.dry_run else ():
            hold = lock.hold(Path(folder, _LOCK), doing="captioning", field="DATA", remedy="wait until it has ended")
            held[folder] = stack.enter_context(hold)
        if request.undo:
            return _undo(sources, held)
        if request.list is not None:
            caption_list.check(request.list, sources)
        run = CaptionRun(request, sources, held)
        if run.todo:
            run.ask(on_progress if on_progress is not None and not request.dry_run else lambda done, total: None)
        return run.end()


class CaptionRun:
    """A run over some clips, which are known by their numbers among those of all sources.

    Attributes:
        records: The record of each folder, or the one of a list; by the roots of clips, "" for the list.
        former_list: Digest of the list that is there; None for none.
        known: Captions that are there from a run before, of clips that so are not asked about.
        todo: Clips to caption; those that failed before come last, so that many of them do not keep a run from the others.
        kept: Number of clips whose captions stay.
        captions, failed: What has come of the others so far.
    """

    def __init__(
        self, request: CaptionRequest, sources: Sequence[CaptionSource], held: Mapping[str, LockHandle]
    ) -> None:
        self.request, self.sources = request, sources
        prompt = prompts.STYLES[request.style] if request.prompt is None else request.prompt
        dtype = request.dtype if request.server is None else None
        how = {name: getattr(request, name) for name in _DECIDING} | {"prompt": prompt, "dtype": dtype}
        self.former_list: str | None = None
        if request.list is not None:
            file = request.list.absolute()
            place = file.with_name(f".{file.name}{record.NAME}")
            self.records = {"": CaptionRecord(place, how, held.get(str(file.parent)))}
            self.former_list = caption_list.digest(file)
        else:
            self.records = {
                root: CaptionRecord(Path(root, record.NAME), how, held.get(root)) for root in _roots(sources)
            }
            places = _places(sources)
            # What a killed run had answered but not yet written.
            settled = [] if request.dry_run else [kept.settle(places) for kept in self.records.values()]
            if any(place is not None for place in settled):
                self.sources = clips.find(request.data, request.root)
        if request.list is not None and self.former_list is not None:
            self.sources = self._with_former_list(request.list)
        self.known: dict[int, list[str]] = {}
        self.todo: dict[int, CaptionClip] = {}
        self.captions: dict[int, list[str]] = {}
        self.failed: dict[int, FailedCaption] = {}
        self._choose()
        self.kept = sum(len(source.clips) for source in self.sources) - len(self.todo) - len(self.failed)

    def _answers(self, runs: record.Runs) -> dict[ClipKey, list[str]]:
        return {key: texts for kept in self.records.values() for key, texts in kept.answers(runs).items()}

    def _record_of(self, clip: CaptionClip) -> CaptionRecord:
        return self.records["" if self.request.list is not None else clip.root]

    def _with_former_list(self, file: Path) -> list[CaptionSource]:
        """Give clips the captions of the list that is there; refuse one that no run wrote, or that was changed since."""
        roots, is_ours = self.records[""].lists(), self.former_list in self.records[""].lists()
        if not is_ours and not self.request.overwrite:
            raise UserError(
                "this file exists, and is not what a run with this list wrote",
                code="output-exists",
                field="list",
                value=str(file),
                remedy="name another file, or add --overwrite, which captions all clips anew too",
            )
        root = roots.get(self.former_list or "", next(reversed(roots.values()), self.request.root))
        answered = self._answers("all").keys() if is_ours else None
        return caption_list.with_its_captions(
            self.sources, file, root, must_be_read=not self.request.overwrite, answered=answered
        )

    def _choose(self) -> None:
        """Find the clips to caption, those that cannot be, and captions that are there from a run before."""
        to_list, overwrite = self.request.list is not None, self.request.overwrite
        # What a run of any options answered for a list may be in it, or would have been, had the run not been killed.
        runs: record.Runs = "continued" if overwrite else "all" if self.former_list is not None else "alike"
        answers = self._answers(runs) if to_list or overwrite else {}
        shared = {} if to_list else clips.sharing([*clips.each(self.sources)])
        has_failed = {key for kept in self.records.values() for key in kept.failed()}
        again: dict[int, CaptionClip] = {}
        for i, clip in enumerate(clips.each(self.sources)):
            key = ClipKey.of_clip(clip)
            answered = answers.get(key)
            is_done = answered is not None and (to_list or clip.caption == "\n".join(answered))
            if is_done and answered is not None and (overwrite or not clip.is_captioned):
                self.known[i] = answered
            elif clip.is_captioned and not overwrite:
                continue
            elif (reason := _why_not(clip, self.request, shared)) is not None:
                self.failed[i] = FailedCaption(clip.label, reason)
            else:
                (again if key in has_failed else self.todo)[i] = clip
        self.todo |= again
        if to_list or len(self.failed) < sum(len(source.clips) for source in self.sources):
            return
        reasons = {failed.reason for failed in self.failed.values()}
        for clip in clips.each(self.sources):
            if clip.place is None and clip.why_no_place in reasons:
                raise UserError(
                    clip.why_no_place.partition(";")[0],
                    code="captions-need-a-list",
                    field="DATA",
                    value=clip.label,
                    remedy="write the captions into a new list: add --list OUT.jsonl",
                )

    def ask(self, on_progress: Progress) -> None:
        """Caption the clips, and write each caption as it comes; in a dry run the first few alone, of which nothing is written.

        Raises:
            UserError: The captioner cannot be used, or fails again and again.
        """
        writes = not self.request.dry_run
        todo = list(self.todo.items()) if writes else list(islice(self.todo.items(), _SHOWN))
        captioner, in_a_row, done = asking.captioner_of(self.request), 0, 0
        for kept in self.records.values():
            kept.captioner = captioner.about
        on_progress(0, len(todo))
        with closing(asking.ask(self.request, captioner, todo)) as answered:
            for i, found in answered:
                clip = self.todo[i]
                if writes and not isinstance(found, CaptionFailed) and (reason := self._keep(clip, found)) is not None:
                    found = CaptionFailed(reason, of_clip=True)
                if isinstance(found, CaptionFailed):
                    self.failed[i] = FailedCaption(clip.label, str(found))
                    if writes:
                        with suppress(OSError):  # what only decides the order ends no run
                            self._record_of(clip).add_failure(clip, str(found))
                    in_a_row = in_a_row if found.of_clip else in_a_row + 1
                else:
                    self.captions[i], in_a_row = found, 0
                done += 1
                on_progress(done, len(todo))
                if in_a_row == _FAILURES_IN_A_ROW:
                    way = next(way for way in ("server", "command", "model") if getattr(self.request, way) is not None)
                    raise UserError(
                        f"{_FAILURES_IN_A_ROW} clips in a row got no caption; the last one: {self.failed[i].reason}",
                        code="captioner-fails",
                        field=way,
                        value=getattr(self.request, way),
                        remedy="try it with --dry-run; captions that are written stay, and the same command goes on",
                    )

    def _keep(self, clip: CaptionClip, captions: Sequence[str]) -> str | None:
        """Record the captions of a clip and write its file; returns why that failed, for this clip alone."""
        place, kept = None if self.request.list is not None else clip.place, self._record_of(clip)
        with files.writing("DATA", kept.file):
            try:
                if place is not None and not self.request.overwrite and record.is_captioned(place):
                    return "a caption was written meanwhile"
                kept.add(clip, captions, place)
                if place is not None:
                    files.write_bytes(place, record.text_of(captions))
            except OSError as error:
                if error.errno in files.OF_DISKS:
                    raise
                return f"its caption cannot be written: {error.strerror or error}"
        return None

    def end(self) -> CaptionResult:
        """Write the list, if there is to be one, and the end of the run into its records."""
        request, records = self.request, tuple[str, ...]()
        if not request.dry_run:
            if request.list is not None:
                self._write_list(request.list)
            for kept in self.records.values():
                kept.end(captioned=len(self.captions), failed=len(self.failed))
            records = tuple(str(kept.file) for kept in self.records.values() if kept.file.exists())
        total = sum(len(source.clips) for source in self.sources)
        examples = ((self.todo[i], tuple(self.captions[i])) for i in sorted(self.captions)[:_SHOWN])
        return CaptionResult(
            clips=total,
            captioned=total - self.kept - len(self.failed),
            kept=self.kept,
            failed=tuple(self.failed[i] for i in sorted(self.failed)),
            examples=tuple(
                CaptionedClip(clip.label, texts, str(clip.place) if request.list is None else None)
                for clip, texts in examples
            ),
            list_file=None if request.list is None else str(request.list),
            records=records,
            dry_run=request.dry_run,
            notes=_notes(request, self.sources),
        )

    def _write_list(self, file: Path) -> None:
        """Write the list with new captions, and with those that clips had, unless it is that already."""
        had = {
            i: clip.caption.split("\n")  # a line for each of several captions
            for i, clip in enumerate(clips.each(self.sources))
            if clip.caption is not None and clip.is_captioned
        }
        data = caption_list.encode(file, self.sources, had | self.known | self.captions)
        new, now = digests.digest_bytes(data), caption_list.digest(file)
        if now == new:
            return
        if now != self.former_list:
            raise UserError(
                "this file was changed or written while clips were captioned; it is left as it is",
                code="output-exists",
                field="list",
                value=str(file),
                remedy="give it another name, and run the same command again: all answers are in the record",
            )
        with files.writing("--list", file):
            self.records[""].add_list(new, caption_list.root_of(self.sources))
        files.write_for("--list", file, data)


def _places(sources: Sequence[CaptionSource]) -> frozenset[Path]:
    return frozenset(clip.place for clip in clips.each(sources) if clip.place is not None)


def _roots(sources: Sequence[CaptionSource]) -> list[str]:
    """Return the folders with clips whose captions lie beside them."""
    return sorted({clip.root for clip in clips.each(sources) if clip.place is not None})


def _why_not(clip: CaptionClip, request: CaptionRequest, shared: Mapping[Path, Sequence[str]]) -> str | None:
    """Return why a clip cannot be captioned, as far as that is known before it is opened."""
    if clip.problem is not None or request.list is not None:
        return clip.problem
    if clip.undecoded and not request.overwrite:
        return f"its caption {clip.undecoded} is in an unknown encoding; save it as UTF-8, or add --overwrite"
    if clip.place is None:
        return clip.why_no_place
    if (labels := shared.get(clip.place)) is not None:
        other = next(label for label in labels if label != clip.label)
        return f"its caption file {clip.place.name} is that of {PurePosixPath(other).name}, too; rename one, or add --list OUT"
    return None


def _notes(request: CaptionRequest, sources: Sequence[CaptionSource]) -> tuple[str, ...]:
    notes = []
    if request.captions > 1:
        notes.append('set captions = "lines" in [[dataset]], so that each use of a clip draws one of its captions')
    if request.trigger is not None and not request.trigger_in:
        text = f'caption = "{request.trigger}, {{text}}"'
        notes.append(f"the trigger word is in no caption: put it there by {text} in [[dataset]]")
    if request.list is not None:
        root = caption_list.root_of(sources)
        if root != request.list.absolute().parent.resolve().as_posix():
            notes.append(f'paths of the list are relative to another folder: set root = "{root}" in [[dataset]]')
    if gone := sum(clip.why_no_place == clips.IN_CATALOG and clip.is_captioned for clip in clips.each(sources)):
        notes.append(
            f"{units.plural(gone, 'caption', 'are')} kept that only the catalog has, as of a list; "
            "where files are gone, scan again first"
        )
    return tuple(notes)


def _undo(sources: Sequence[CaptionSource], held: Mapping[str, LockHandle]) -> CaptionResult:
    places, found = _places(sources), list[tuple[Path, bool]]()
    for root in _roots(sources):
        with files.writing("DATA", Path(root)):
            found += CaptionRecord(Path(root, record.NAME), None, held[root]).undo(places)
    if not found:
        raise UserError(
            "there is no run to undo",
            code="nothing-to-undo",
            field="undo",
            remedy="name the folder whose captions a run has written beside the clips",
        )
    total = sum(len(source.clips) for source in sources)
    restored = tuple(str(place) for place, is_ours in found if is_ours)
    changed = tuple(str(place) for place, is_ours in found if not is_ours)
    return CaptionResult(total, 0, total - len(restored), restored=restored, changed_since=changed)
