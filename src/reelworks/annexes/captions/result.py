"""Results of captioning."""

from __future__ import annotations

from dataclasses import dataclass


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
