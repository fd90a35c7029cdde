"""Sizes of a trainer's datasets as [[bucket]] entries, with `dataset.resolutions` and `lengths` where datasets differ.

Entries hold for all datasets of a recipe, and a clip takes the largest that it fills unless its dataset names others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.data.buckets import sizes


@dataclass(frozen=True)
class Sizes:
    """The sizes that the clips of a dataset are trained at.

    Attributes:
        resolutions: Names of resolutions, as entries have them.
        frames: Numbers of frames; 1 for pictures.
        batch_size: Clips of a batch; None for the default.
        each_length: Whether a video is trained at each of its lengths, and not at the longest that it has.
        is_ladder: Whether a clip takes the largest of the resolutions that it fills, and not each of them.
        at: Frames of each resolution, if they have not all of them.
    """

    resolutions: tuple[str, ...]
    frames: tuple[int, ...] = (1,)
    batch_size: int | None = None
    each_length: bool = False
    is_ladder: bool = False
    at: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def is_video(self) -> bool:
        """Whether entries for it take videos alone."""
        return min(self.frames) > 1

    def meets(self, other: Sizes) -> bool:
        """Return whether the clips of both may take the same entries."""
        return bool(self.lengths and other.lengths) or (1 in self.frames and 1 in other.frames)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of its videos."""
        return tuple(each for each in sorted(self.frames) if each > 1)


def write(draft: ImportDraft, datasets: Sequence[Sizes], *, draws: bool = False) -> None:
    """Write the entries of all datasets, the largest first, and what each dataset takes of them if they differ.

    With `draws`, each use of a clip draws one of the resolutions, instead of one use at each.
    """
    entries: dict[tuple[bool, str], list[Sizes]] = {}
    for each in datasets:
        for resolution in each.resolutions:
            entries.setdefault((each.is_video, resolution), []).append(each)
    ranked = sorted(entries, key=lambda entry: (not entry[0], -sizes.pixel_budget(entry[1])[0]))
    why = re.sub(r"\.\d+\.", ".*.", draft.key) or "resolution"
    for number, entry in enumerate(ranked):
        frames = sorted({each for user in entries[entry] for each in user.at.get(entry[1], user.frames)})
        draft.set(f"bucket.{number}.resolution", entry[1], why)
        draft.set(f"bucket.{number}.num_frames", frames if len(frames) > 1 else frames[0], "")
        if batches := [user.batch_size for user in entries[entry] if user.batch_size is not None]:
            draft.set(f"bucket.{number}.batch_size", max(batches), "batch_size")
    for number, each in enumerate(datasets):
        _choose_resolutions(draft, number, each, [other for other in datasets if each.meets(other)], draws=draws)
        _choose_lengths(draft, number, each, datasets)
    if draws and "dataset.0.resolutions" not in draft.assigned():
        for number in range(len(entries) - 1):
            draft.set(
                f"bucket.{number}.keep_prob", round(1 / (len(entries) - number), 6), "a size is drawn at each use"
            )


def _choose_resolutions(draft: ImportDraft, number: int, each: Sizes, peers: Sequence[Sizes], *, draws: bool) -> None:
    differ = len({frozenset(other.resolutions) for other in peers}) > 1
    several = len(each.resolutions) > 1
    if not differ and (not several or draws or each.is_ladder):
        return
    draft.set(
        f"dataset.{number}.resolutions", list(each.resolutions), "others have other sizes" if differ else "at each"
    )
    if several and draws:
        repeats = draft.get(f"dataset.{number}.repeats", 1) / len(each.resolutions)
        draft.set(
            f"dataset.{number}.repeats", round(repeats, 6), f"{len(each.resolutions)} sizes, of which one is drawn"
        )


def _choose_lengths(draft: ImportDraft, number: int, each: Sizes, datasets: Sequence[Sizes]) -> None:
    every = {length for other in datasets for length in other.lengths}
    if (len(each.lengths) == 1 < len(every)) or (each.each_length and len(each.lengths) > 1):
        why = "others have other lengths" if len(each.lengths) == 1 else "a video is trained at each"
        draft.set(f"dataset.{number}.lengths", list(each.lengths), why)


def takes_others(number: int, datasets: Sequence[Sizes]) -> bool:
    """Return whether videos of a dataset can take lengths of others: it has several, of which each takes the longest."""
    each = datasets[number]
    every = {length for other in datasets for length in other.lengths}
    return 1 < len(each.lengths) < len(every) and not each.each_length
