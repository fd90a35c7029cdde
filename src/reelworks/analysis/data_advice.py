"""Advise on a catalog before training: damaged, small, duplicate and shared files. Pure functions of rows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.summary import summarise

FEW_PICTURES = 15  # LoRA guides agree on 15 to 20 pictures of a subject
MAX_TOKENS = 77  # limit of CLIP's text encoder, the shortest in use
SMALL_SIDE_PX = 256
SHORT_FRAMES = 17
LONG_SECONDS = 20.0
ONE_ASPECT = 0.9
ENOUGH = 10  # fewest clips for a meaningful share
_FILES_NAMED = 20
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class DataAdvice:
    """One piece of advice.

    Attributes:
        name: Subject, for programs.
        files: "dataset/path" of some of the clips concerned; empty if all clips are concerned.
    """

    name: str
    text: str
    remedy: str
    files: tuple[str, ...] = ()


def advise(rows: CatalogRows) -> list[DataAdvice]:
    """Return all advice about rows, the most serious first."""
    return [advice for rule in RULES if (advice := rule(rows)) is not None]


def count_tokens(caption: str) -> int:
    """Return the number of words and punctuation marks, a lower bound for the number of tokens."""
    return len(_TOKEN.findall(caption))


def clips_by_folder(rows: CatalogRows) -> Counter[str]:
    """Return the number of clips in each folder, by "dataset/folder"."""
    text = pa.large_string()
    names = pc.binary_join_element_wise(rows.dataset.cast(text), rows.path, pa.scalar("/", text))
    counted = pc.value_counts(pc.replace_substring_regex(names, pattern="/[^/]*$", replacement=""))
    return Counter(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))


def unreadable(rows: CatalogRows) -> DataAdvice | None:
    """Advise on files that cannot be read."""
    remedy = "replace or remove them; training skips them"
    return _about(rows, "unreadable", ~rows.readable, "{clips} cannot be read", remedy)


def captions_missing(rows: CatalogRows) -> DataAdvice | None:
    """Advise on clips without a caption file."""
    where = rows.readable & np.asarray(rows.caption.is_null())
    remedy = "write each caption into a text file next to its clip, for example cat.txt for cat.mp4"
    return _about(rows, "captions_missing", where, "{clips} without a caption", remedy)


def captions_empty(rows: CatalogRows) -> DataAdvice | None:
    """Advise on empty captions."""
    blank = pc.equal(pc.utf8_trim_whitespace(rows.caption.fill_null("-")), "")
    where = rows.readable & np.asarray(blank)
    return _about(rows, "captions_empty", where, "{captions_are} empty", "describe what the clip shows")


def captions_garbled(rows: CatalogRows) -> DataAdvice | None:
    """Advise on captions with bytes that are not text."""
    captions = rows.caption.fill_null("")
    odd = pc.or_(pc.match_substring(captions, "\ufffd"), pc.match_substring(captions, "\0"))
    where = rows.readable & np.asarray(odd)
    text = "{captions_have} bytes that are not UTF-8"
    return _about(rows, "captions_garbled", where, text, "save the text files as UTF-8")


def captions_long(rows: CatalogRows) -> DataAdvice | None:
    """Advise on captions that text encoders truncate."""
    lengths = np.asarray(pc.utf8_length(rows.caption.fill_null("")))
    where = np.zeros(len(rows), dtype=np.bool_)
    for i in np.flatnonzero(rows.readable & (lengths > MAX_TOKENS)).tolist():
        where[i] = count_tokens(rows.caption[i].as_py()) > MAX_TOKENS
    text = f"{{captions_are}} longer than {MAX_TOKENS} tokens"
    remedy = f"CLIP text encoders read only the first {MAX_TOKENS} tokens; put what matters first"
    return _about(rows, "captions_long", where, text, remedy)


def captions_equal(rows: CatalogRows) -> DataAdvice | None:
    """Advise on a caption that most of the clips share."""
    captions = rows.take(rows.readable & np.asarray(rows.caption.is_valid())).caption
    most = pc.max(pc.value_counts(captions).field("counts")).as_py() or 0
    if len(captions) < ENOUGH or most < ONE_ASPECT * len(captions):
        return None
    text = f"{most} of {len(captions)} captions are the same"
    remedy = "describe how the clips differ, or the prompt will have no effect"
    return DataAdvice("captions_equal", text, remedy)


def few_pictures(rows: CatalogRows) -> DataAdvice | None:
    """Advise on folders that hold nothing but a few images, as for a LoRA."""
    videos = clips_by_folder(rows.take(rows.readable & rows.is_video))
    pictures = clips_by_folder(rows.take(rows.readable & rows.is_image))
    few = {f: n for f, n in pictures.items() if n < FEW_PICTURES and not videos[f]}
    if not few:
        return None
    (folder, n), others = min(few.items(), key=lambda item: (item[1], item[0])), len(few) - 1
    where = "" if len(pictures) == 1 else f" in {folder}"
    more = f" (and {others} more such folder{'s' if others > 1 else ''})" if others else ""
    text = f"{n} picture{'' if n == 1 else 's'}{where}{more}; 15 to 20 per subject train better"
    return DataAdvice("few_pictures", text, "add pictures of other angles, light and backgrounds")


def duplicates(rows: CatalogRows) -> DataAdvice | None:
    """Advise on files with the same content as another."""
    where, good = rows.readable.copy(), np.flatnonzero(rows.readable)
    codes = rows.fingerprint.take(pa.array(good)).dictionary_encode().indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    where[good[first]] = False
    remedy = "remove them, or use [[dataset]] repeats if they are meant to count twice"
    return _about(rows, "duplicates", where, "{clips} with the same content as another file", remedy)


def small(rows: CatalogRows) -> DataAdvice | None:
    """Advise on clips with few pixels."""
    where = rows.readable & (np.minimum(rows.height, rows.width) < SMALL_SIDE_PX)
    text = f"{{clips}} with fewer than {SMALL_SIDE_PX} pixels on the short side"
    return _about(rows, "small", where, text, "add buckets of their size, or remove them")


def short(rows: CatalogRows) -> DataAdvice | None:
    """Advise on videos with few frames."""
    where = rows.readable & rows.is_video & (rows.num_frames < SHORT_FRAMES)
    text = f"{{clips}} with fewer than {SHORT_FRAMES} frames"
    return _about(rows, "short", where, text, "add a bucket with fewer frames, or they are rejected as too_short")


def long(rows: CatalogRows) -> DataAdvice | None:
    """Advise on videos of which an epoch shows only a small part."""
    where = rows.readable & (rows.duration_seconds > LONG_SECONDS)
    text = f"{{clips}} longer than {LONG_SECONDS:g} s"
    remedy = "an epoch reads one section of each; cut them at scene changes"
    return _about(rows, "long", where, text, remedy)


def mixed_fps(rows: CatalogRows) -> DataAdvice | None:
    """Advise on videos with different frame rates."""
    fps = rows.fps[rows.readable & rows.is_video]
    if not len(fps) or fps.max() < 1.2 * fps.min():
        return None
    common = np.median(fps)
    text = f"videos have {fps.min():.3g} to {fps.max():.3g} frames per second, with a median of {common:.3g}"
    return DataAdvice("mixed_fps", text, f"set [data] fps = {common:.0f} to read all videos at one frame rate")


def variable_fps(rows: CatalogRows) -> DataAdvice | None:
    """Advise on videos whose frames are unevenly spaced."""
    where = rows.readable & rows.variable_fps
    remedy = "motion looks uneven; convert them to a constant rate if that matters"
    return _about(rows, "variable_fps", where, "{clips} with variable frame rate", remedy)


def one_aspect(rows: CatalogRows) -> DataAdvice | None:
    """Advise on clips that nearly all have one aspect ratio."""
    good = int(rows.readable.sum())
    label, n = max(summarise(rows).aspect_ratio, key=lambda item: item[1], default=("", 0))
    if good < ENOUGH or n < ONE_ASPECT * good:
        return None
    text = f"{n / good:.0%} of the clips are about {label}"
    remedy = f'one ratio is enough: [buckets] aspect_ratios = ["{label}"]; generated clips of other ratios look worse'
    return DataAdvice("one_aspect", text, remedy)


def transparent(rows: CatalogRows) -> DataAdvice | None:
    """Advise on clips with an alpha channel."""
    where = rows.readable & rows.has_alpha
    return _about(rows, "transparent", where, "{clips} with transparency", "they are drawn on a white background")


RULES: tuple[Callable[[CatalogRows], DataAdvice | None], ...] = (
    unreadable,
    captions_missing,
    captions_empty,
    captions_garbled,
    captions_long,
    captions_equal,
    few_pictures,
    duplicates,
    small,
    short,
    long,
    mixed_fps,
    variable_fps,
    one_aspect,
    transparent,
)


def _about(rows: CatalogRows, name: str, where: NDArray[np.bool_], text: str, remedy: str) -> DataAdvice | None:
    """Return advice about some clips, if there are any; `{clips}` in the text becomes "1 clip" or "3 clips"."""
    found = np.flatnonzero(where)
    if not len(found):
        return None
    n = len(found)
    text = text.format(
        clips="1 clip" if n == 1 else f"{n} clips",
        captions_are="1 caption is" if n == 1 else f"{n} captions are",
        captions_have="1 caption has" if n == 1 else f"{n} captions have",
    )
    return DataAdvice(name, text, remedy, tuple(rows.label(i) for i in found[:_FILES_NAMED].tolist()))


def shared_files(datasets: Sequence[DatasetConfig], rows: CatalogRows) -> list[dict[str, Any]]:
    """Return pairs of datasets that overlap by mistake, as {"datasets", "files"}, the outer folder first.

    Datasets are meant to overlap if one has a name, or if their captions or filters differ.
    """
    wide_first = sorted(datasets, key=lambda d: len(d.place.root.resolve().parts))
    pairs = [pair for pair in itertools.combinations(wide_first, 2) if _overlap_by_mistake(*pair)]
    number = _numbered({d.dataset_name: d for pair in pairs for d in pair}.values(), rows)
    overlaps = []
    for pair in pairs:
        names = [d.dataset_name for d in pair]
        wide, narrow = (number[name] for name in names)
        if count := int(np.isin(narrow, wide, kind="table").sum()):
            overlaps.append({"datasets": names, "files": count})
    return overlaps


def _overlap_by_mistake(wide: DatasetConfig, narrow: DatasetConfig) -> bool:
    if not narrow.place.root.resolve().is_relative_to(wide.place.root.resolve()):
        return False
    unnamed = wide.name is None and narrow.name is None
    return unnamed and (wide.caption, wide.filter) == (narrow.caption, narrow.filter)


def _numbered(datasets: Collection[DatasetConfig], rows: CatalogRows) -> dict[str, NDArray[np.int32]]:
    """Return a number for each file, the same in all datasets, so that strings are compared only once."""
    paths = []
    for dataset in datasets:
        own = rows.path.filter(pa.array(rows.of_datasets([dataset.dataset_name])))
        root, slash = (pa.scalar(text, own.type) for text in (str(dataset.place.root.resolve()), "/"))
        paths.append(pc.binary_join_element_wise(root, own, slash))
    if not paths:
        return {}
    every = pa.concat_arrays(paths).dictionary_encode().indices.to_numpy()
    ends = np.cumsum([len(own) for own in paths])
    return {d.dataset_name: part for d, part in zip(datasets, np.split(every, ends[:-1]), strict=True)}
