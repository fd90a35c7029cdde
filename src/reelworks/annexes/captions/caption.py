"""Caption clips: choose those that need it, ask a captioner, and write what it answers, clip by clip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from reelworks.annexes.captions import asking, clips, new_list, old_list, prompts, record
from reelworks.annexes.captions.asking import NoCaption
from reelworks.annexes.captions.clips import CaptionClip, CaptionSource
from reelworks.annexes.captions.record import CaptionRecord, ClipKey
from reelworks.annexes.captions.request import CaptionRequest
from reelworks.annexes.captions.result import CaptionedClip, CaptionResult, FailedCaption
from reelworks.core import digests, files
from reelworks.core.errors import UserError
from reelworks.data.run import lock

_SHOWN = 3  # captions of a dry run, and examples of any other
_FAILURES_IN_A_ROW = 20  # after which the captioner is to blame, and not the clips
_LOCK = ".reelworks-captions.lock"
Progress = Callable[[int, int], None]


def caption(request: CaptionRequest, on_progress: Progress | None = None) -> CaptionResult:
    """Caption the clips of a request; the same call goes on where one was killed.

    Args:
        on_progress: Called with the number of clips that are done, and of all to be captioned.

    Raises:
        UserError: The data, the captioner or the place of the captions cannot be used.
    """
    sources = clips.find(request.data, request.root)
    with ExitStack() as stack:
        if request.undo:
            return _undo(sources, stack)
        if not request.dry_run:
            _lock(request, sources, stack)
        if request.list is not None:
            new_list.check(request.list, sources)
        books = _Books.open(request, sources)
        if not request.dry_run and books.settle():
            sources = clips.find(request.data, request.root)
        if request.list is not None and books.former_list is not None:
            sources = _with_former_list(request, request.list, sources, books)
        choice = _choose(request, sources, books)
        if request.dry_run:
            return _try(request, sources, choice)
        return _run(request, sources, choice, books, on_progress or (lambda done, total: None))


def _lock(request: CaptionRequest, sources: Sequence[CaptionSource], stack: ExitStack) -> None:
    if request.list is not None:
        folders = [request.list.absolute().parent]
    else:
        folders = sorted({Path(clip.root) for clip in clips.each(sources) if clip.place is not None})
    for folder in folders:
        hold = lock.hold(folder / _LOCK, doing="captioning", field="DATA", remedy="wait until it has ended")
        stack.enter_context(hold)


class _Books(NamedTuple):
    """The record of each folder, or the one of a list, by the roots of clips; "" for the list.

    `former_list` is the digest of the list that is there, None for none.
    """

    records: dict[str, CaptionRecord]
    places: frozenset[Path]
    former_list: str | None = None

    @classmethod
    def open(cls, request: CaptionRequest, sources: Sequence[CaptionSource]) -> _Books:
        how = _how(request)
        places = frozenset(clip.place for clip in clips.each(sources) if clip.place is not None)
        if request.list is not None:
            file = request.list.absolute()
            book = CaptionRecord(file.with_name(f".{file.name}{record.NAME}"), how)
            return cls({"": book}, places, old_list.digest(file))
        roots = sorted({clip.root for clip in clips.each(sources) if clip.place is not None})
        return cls({root: CaptionRecord(Path(root, record.NAME), how) for root in roots}, places)

    def settle(self) -> bool:
        """Write what a killed run had answered but not yet written; returns whether there was any."""
        settled = [book.settle(self.places) for root, book in self.records.items() if root]
        return any(place is not None for place in settled)

    def answers(self, runs: record.Runs) -> dict[ClipKey, list[str]]:
        found: dict[ClipKey, list[str]] = {}
        for book in self.records.values():
            found |= book.answers(runs)
        return found

    def of_clip(self, clip: CaptionClip) -> CaptionRecord:
        return self.records["" if "" in self.records else clip.root]


def _how(request: CaptionRequest) -> dict[str, Any]:
    """Return all that decides what captions say, for the record."""
    style = prompts.STYLES[request.style] if request.prompt is None else None
    names = ("model", "server", "command", "trigger", "trigger_in", "max_words", "captions", "frames", "frame_size")
    how = {name: getattr(request, name) for name in names}
    return how | {"prompt": request.prompt or style, "dtype": request.dtype if request.server is None else None}


def _with_former_list(
    request: CaptionRequest, file: Path, sources: Sequence[CaptionSource], books: _Books
) -> list[CaptionSource]:
    """Give clips the captions of the list that is there; refuse one that no run wrote, or that was changed since."""
    roots = books.records[""].lists()
    if books.former_list not in roots and not request.overwrite:
        raise UserError(
            "this file exists, and is not what a run with this list wrote",
            code="output-exists",
            field="list",
            value=str(file),
            remedy="name another file, or add --overwrite, which captions all clips anew too",
        )
    root = roots.get(books.former_list or "", next(reversed(roots.values()), request.root))
    answered = books.answers("all").keys() if books.former_list in roots else None
    return old_list.with_its_captions(sources, file, root, must_be_read=not request.overwrite, answered=answered)


class _Choice(NamedTuple):
    """Clips to caption and clips that cannot be, by their numbers, and captions that are there from a run before."""

    todo: list[tuple[int, CaptionClip]]
    failed: dict[int, FailedCaption]
    known: dict[int, list[str]]
    total: int

    @property
    def kept(self) -> int:
        return self.total - len(self.todo) - len(self.failed)


def _choose(request: CaptionRequest, sources: Sequence[CaptionSource], books: _Books) -> _Choice:
    to_list = request.list is not None
    # What a run of any options answered for a list may be in it, or would have been, had the run not been killed.
    runs: record.Runs = "continued" if request.overwrite else "all" if books.former_list is not None else "alike"
    known = books.answers(runs) if to_list or request.overwrite else {}
    shared = {} if to_list else clips.sharing([*clips.each(sources)])
    choice = _Choice([], {}, {}, sum(len(source.clips) for source in sources))
    for i, clip in enumerate(clips.each(sources)):
        answered = known.get(ClipKey.of_clip(clip))
        is_done = answered is not None and (to_list or clip.caption == "\n".join(answered))
        if is_done and answered is not None and (request.overwrite or not clip.is_captioned):
            choice.known[i] = answered
        elif clip.is_captioned and not request.overwrite:
            continue
        elif (reason := _why_not(clip, request, shared)) is not None:
            choice.failed[i] = FailedCaption(clip.label, reason)
        else:
            choice.todo.append((i, clip))
    # Those that failed before come last, so that many of them do not keep a run from the others.
    failed = {key for book in books.records.values() for key in book.failed()}
    choice.todo.sort(key=lambda one: ClipKey.of_clip(one[1]) in failed)
    reasons = {failed.reason for failed in choice.failed.values()}
    no_place = next((clip for clip in clips.each(sources) if clip.why_no_place in reasons and clip.place is None), None)
    if not to_list and not choice.todo and not choice.known and no_place is not None and choice.kept == 0:
        raise UserError(
            no_place.why_no_place.partition(";")[0],
            code="captions-need-a-list",
            field="DATA",
            value=no_place.label,
            remedy="write the captions into a new list: add --list OUT.jsonl",
        )
    return choice


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


def _try(request: CaptionRequest, sources: Sequence[CaptionSource], choice: _Choice) -> CaptionResult:
    """Caption the first few clips, and write nothing."""
    failed, examples = list(choice.failed.values()), []
    todo = choice.todo[:_SHOWN]
    if todo:
        for i, found in asking.ask(request, asking.captioner_of(request), todo):
            clip = dict(todo)[i]
            if isinstance(found, NoCaption):
                failed.append(FailedCaption(clip.label, found.reason))
            else:
                examples.append(CaptionedClip(clip.label, tuple(found), _file_of(request, clip)))
    examples.sort(key=lambda example: example.clip)
    return CaptionResult(
        clips=choice.total,
        captioned=len(choice.todo) - len(todo) + len(examples),
        kept=choice.kept,
        failed=tuple(failed),
        examples=tuple(examples),
        list_file=None if request.list is None else str(request.list),
        dry_run=True,
        notes=_notes(request, sources),
    )


def _file_of(request: CaptionRequest, clip: CaptionClip) -> str | None:
    return str(clip.place) if request.list is None else None


def _run(
    request: CaptionRequest, sources: Sequence[CaptionSource], choice: _Choice, books: _Books, on_progress: Progress
) -> CaptionResult:
    captions, failed = _ask_all(request, choice, books, on_progress) if choice.todo else ({}, {})
    failed |= choice.failed
    if request.list is not None:
        _write_list(request, sources, books, choice.known | captions)
    for book in books.records.values():
        book.end(captioned=len(captions), failed=len(failed))
    of_number = dict(choice.todo)
    examples = [
        CaptionedClip(of_number[i].label, tuple(captions[i]), _file_of(request, of_number[i]))
        for i in sorted(captions)[:_SHOWN]
    ]
    return CaptionResult(
        clips=choice.total,
        captioned=len(captions),
        kept=choice.kept,
        failed=tuple(failed[i] for i in sorted(failed)),
        examples=tuple(examples),
        list_file=None if request.list is None else str(request.list),
        records=tuple(str(book.file) for book in books.records.values() if book.file.exists()),
        notes=_notes(request, sources),
    )


def _ask_all(
    request: CaptionRequest, choice: _Choice, books: _Books, on_progress: Progress
) -> tuple[dict[int, list[str]], dict[int, FailedCaption]]:
    """Caption all clips, writing each caption as it comes; returns captions and failures by the numbers of clips."""
    captioner, of_number = asking.captioner_of(request), dict(choice.todo)
    for book in books.records.values():
        book.captioner = captioner.about
    captions: dict[int, list[str]] = {}
    failed: dict[int, FailedCaption] = {}
    in_a_row = 0
    on_progress(0, len(choice.todo))
    with closing(asking.ask(request, captioner, choice.todo)) as answered:
        for i, found in answered:
            clip = of_number[i]
            if not isinstance(found, NoCaption):
                reason = _keep(request, books, clip, found)
                found = found if reason is None else NoCaption(reason, of_clip=True)
            if isinstance(found, NoCaption):
                failed[i] = FailedCaption(clip.label, found.reason)
                with suppress(OSError):  # what only decides the order ends no run
                    books.of_clip(clip).add_failure(clip, found.reason)
                in_a_row = in_a_row if found.of_clip else in_a_row + 1
            else:
                captions[i], in_a_row = found, 0
            on_progress(len(captions) + len(failed), len(choice.todo))
            if in_a_row == _FAILURES_IN_A_ROW:
                raise _gave_up(request, failed[i].reason)
    return captions, failed


def _keep(request: CaptionRequest, books: _Books, clip: CaptionClip, captions: Sequence[str]) -> str | None:
    """Record the captions of a clip and write its file; returns why that failed, for this clip alone."""
    place = None if request.list is not None else clip.place
    with files.writing("DATA", books.of_clip(clip).file):
        try:
            if place is not None and not request.overwrite and record.is_captioned(place):
                return "a caption was written meanwhile"
            books.of_clip(clip).add(clip, captions, place)
            if place is not None:
                files.write_bytes(place, record.text_of(captions))
        except OSError as error:
            if error.errno in files.OF_DISKS:
                raise
            return f"its caption cannot be written: {error.strerror or error}"
    return None


def _gave_up(request: CaptionRequest, reason: str) -> UserError:
    way = "server" if request.server is not None else "command" if request.command is not None else "model"
    return UserError(
        f"{_FAILURES_IN_A_ROW} clips in a row got no caption; the last one: {reason}",
        code="captioner-fails",
        field=way,
        value=getattr(request, way),
        remedy="try it with --dry-run; captions that are written stay, and the same command goes on",
    )


def _write_list(
    request: CaptionRequest, sources: Sequence[CaptionSource], books: _Books, captions: Mapping[int, Sequence[str]]
) -> None:
    """Write the list with new captions, and with those that clips had, unless it is that already."""
    assert request.list is not None
    had = {
        i: clip.caption.split("\n")  # a line for each of several captions
        for i, clip in enumerate(clips.each(sources))
        if clip.caption is not None and clip.is_captioned
    }
    data = new_list.encode(request.list, sources, had | dict(captions))
    new, now = digests.digest_bytes(data), old_list.digest(request.list)
    if now == new:
        return
    if now != books.former_list:
        raise UserError(
            "this file was changed or written while clips were captioned; it is left as it is",
            code="output-exists",
            field="list",
            value=str(request.list),
            remedy="give it another name, and run the same command again: all answers are in the record",
        )
    with files.writing("--list", request.list):
        books.records[""].add_list(new, new_list.root_of(sources))
    files.write_for("--list", request.list, data)


def _notes(request: CaptionRequest, sources: Sequence[CaptionSource]) -> tuple[str, ...]:
    notes = []
    if request.captions > 1:
        notes.append('set captions = "lines" in [[dataset]], so that each use of a clip draws one of its captions')
    if request.trigger is not None and not request.trigger_in:
        text = f'caption = "{request.trigger}, {{text}}"'
        notes.append(f"the trigger word is in no caption: put it there by {text} in [[dataset]]")
    if request.list is not None:
        root = new_list.root_of(sources)
        if root != str(request.list.absolute().parent.resolve()):
            notes.append(f'paths of the list are relative to another folder: set root = "{root}" in [[dataset]]')
    if gone := sum(clip.why_no_place == clips.IN_CATALOG and clip.is_captioned for clip in clips.each(sources)):
        notes.append(
            f"{gone} captions are kept that only the catalog has, as of a list; where files are gone, scan again first"
        )
    return tuple(notes)


def _undo(sources: Sequence[CaptionSource], stack: ExitStack) -> CaptionResult:
    places = frozenset(clip.place for clip in clips.each(sources) if clip.place is not None)
    roots = sorted({clip.root for clip in clips.each(sources) if clip.place is not None})
    found: list[tuple[Path, bool]] = []
    for root in roots:
        hold = lock.hold(Path(root, _LOCK), doing="captioning", field="DATA", remedy="wait until it has ended")
        stack.enter_context(hold)
        with files.writing("DATA", Path(root)):
            found += CaptionRecord(Path(root, record.NAME)).undo(places)
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
    return replace(CaptionResult(total, 0, total - len(restored)), restored=restored, changed_since=changed)
