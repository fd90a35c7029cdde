"""`reelworks caption`: write captions of clips by a model, a server or a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Exit

from reelworks.annexes.captions.request import CaptionRequest
from reelworks.commands import show
from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.options import Json
from reelworks.core.units import plural

if TYPE_CHECKING:
    from reelworks.annexes.captions.caption import CaptionResult

_FAILED_SHOWN = 20


def caption(request: CaptionRequest, json: Json = False) -> None:
    """Write captions of clips by a vision-language model, a server or a command.

    Each caption becomes a .txt file beside its clip as soon as it is there, or with --list, all of them a new list, which is
    needed for members of archives, addresses, ranges of files, and lists with a column of captions. Clips that have a
    caption keep it, without --overwrite. The same command goes on where one was killed, and tries again what failed. The
    record .reelworks-captions.jsonl tells of each caption by what it was made, and has the former text, which --undo puts
    back.

    A clip that cannot be read, or whose answer is empty, HTML, a refusal or a loop of words, is named with the reason, and
    the others go on; the exit code is then 1.
    """
    from reelworks.annexes.captions import caption as captioning

    progress = show.clip_progress(quiet=json, doing="captioning")
    with show.stdout_for_json(json), progress as on_progress:
        result = captioning.caption(request, on_progress)
    show.json(result) if json else _print(result)
    if result.failed:
        raise Exit(ExitCode.FAILED)


def _print(result: CaptionResult) -> None:
    for example in result.examples:
        show.line(example.clip + (f" -> {example.file}" if example.file else ""))
        for text in example.captions:
            show.line(f"  {text}")
    for failed in result.failed[:_FAILED_SHOWN]:
        show.line(f"no caption: {failed.clip}: {failed.reason}")
    if len(result.failed) > _FAILED_SHOWN:
        show.line(f"and {len(result.failed) - _FAILED_SHOWN} more without a caption; --json lists them")
    if result.restored or result.changed_since:
        show.line(
            f"put back: {plural(len(result.restored), 'file')}; changed since, and left: {len(result.changed_since)}"
        )
        for file in result.changed_since[:_FAILED_SHOWN]:
            show.line(f"  {file}")
        return
    would = "would be captioned" if result.dry_run else "captioned"
    counts = f"{result.captioned} {would}, {result.kept} kept, {len(result.failed)} without a caption"
    show.line(f"{plural(result.clips, 'clip')}: {counts}")
    for note in result.notes:
        show.line(f"note: {note}")
    if result.list_file is not None:
        show.line(result.list_file + (" would be written" if result.dry_run else ""))
    for file in result.records:
        show.line(f"record: {file}")
