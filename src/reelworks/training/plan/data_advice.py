"""Advise on a catalog before training: damaged, small, duplicate and shared files. Pure functions of rows.

What captions say is looked at in `caption_advice`.
"""

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

from reelworks.core import digests, toml, units
from reelworks.core.hash_rng import hash64
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.summary import summarise
from reelworks.data.media import pictures

FEW_PICTURES = 15  # LoRA guides agree on 15 to 20 pictures of a subject
SMALL_SIDE_PX = 256
SHORT_FRAMES = 17
ALL_DARK = 0.99  # share of pixels without any light, as `clipped_dark` measures it
LONG_SECONDS = 20.0
ONE_ASPECT = 0.9
ENOUGH = 10  # fewest clips for a meaningful share
FILES_NAMED = 20
_TEXTS = toml.beside(__file__, "data_advice.toml")
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


Finding = tuple[str, str, tuple[str, ...]] | None  # text, remedy and files of an advice


def advise(rows: CatalogRows) -> list[DataAdvice]:
    """Return all advice about rows, the most serious first."""
    advice = []
    for name, rule in RULES.items():
        found = rule(rows)
        finding: Finding = _of_clips(name, np.asarray(found), rows) if name in _TEXTS else found
        if finding is not None:
            advice.append(DataAdvice(name, *finding))
    return advice


def count_tokens(caption: str) -> int:
    """Return the number of words and punctuation marks, a lower bound for the number of tokens."""
    return len(_TOKEN.findall(caption))


def clips_by_folder(rows: CatalogRows) -> Counter[str]:
    """Return the number of clips in each folder, by "dataset/folder"."""
    text = pa.large_string()
    names = pc.binary_join_element_wise(rows.dataset.cast(text), rows.path, pa.scalar("/", text))
    counted = pc.value_counts(pc.replace_substring_regex(names, pattern="/[^/]*$", replacement=""))
    return Counter(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))


def _of_clips(name: str, where: NDArray[np.bool_], rows: CatalogRows) -> Finding:
    """Return what is told of the readable clips in a mask, or of those that are not."""
    found = np.flatnonzero(where & (~rows.readable if name == "unreadable" else rows.readable))
    if not len(found):
        return None
    n = len(found)
    text = _TEXTS[name]["text"].format(
        clips=units.plural(n, "clip"),
        captions_are=f"{units.plural(n, 'caption', 'are')}",
        captions_have=f"{units.plural(n, 'caption', 'have')}",
        small_side_px=SMALL_SIDE_PX,
        short_frames=SHORT_FRAMES,
        long_seconds=LONG_SECONDS,
    )
    return text, _TEXTS[name]["remedy"], tuple(rows.label(i) for i in found[:FILES_NAMED].tolist())


def _captions_equal(rows: CatalogRows) -> Finding:
    captions = rows.take(rows.readable & np.asarray(rows.caption.is_valid())).caption
    most = pc.max(pc.value_counts(captions).field("counts")).as_py() or 0
    if len(captions) < ENOUGH or most < ONE_ASPECT * len(captions):
        return None
    text = f"{most} of {len(captions)} captions are the same"
    return text, "describe how the clips differ, or the prompt will have no effect", ()


def _few_pictures(rows: CatalogRows) -> Finding:
    """Advise on folders that hold nothing but a few images, as for a LoRA."""
    videos = clips_by_folder(rows.take(rows.readable & rows.is_video))
    pictures = clips_by_folder(rows.take(rows.readable & rows.is_image))
    few = {f: n for f, n in pictures.items() if n < FEW_PICTURES and not videos[f]}
    if not few:
        return None
    (folder, n), others = min(few.items(), key=lambda item: (item[1], item[0])), len(few) - 1
    where = "" if len(pictures) == 1 else f" in {folder}"
    more = f" (and {units.plural(others, 'more such folder')})" if others else ""
    text = f"{units.plural(n, 'picture')}{where}{more}; 15 to 20 per subject train better"
    return text, "add pictures of other angles, light and backgrounds", ()


def _duplicates(rows: CatalogRows) -> NDArray[np.bool_]:
    where, good = rows.readable.copy(), np.flatnonzero(rows.readable)
    codes = rows.content_keys()[good]
    codes = np.where(codes == digests.NO_CONTENT, rows.uid[good], codes)
    ranged = rows.is_range[good]  # ranges of one file differ
    codes[ranged] = hash64(codes[ranged], rows.first_frame[good[ranged]], rows.num_frames[good[ranged]])
    _, first = np.unique(codes, return_index=True)
    where[good[first]] = False
    return where


def _mixed_fps(rows: CatalogRows) -> Finding:
    fps = rows.fps[rows.readable & rows.is_video]
    if not len(fps) or fps.max() < 1.2 * fps.min():
        return None
    common = np.median(fps)
    text = f"videos have {fps.min():.3g} to {fps.max():.3g} frames per second, with a median of {common:.3g}"
    return text, f"set [data] fps = {common:.0f} to read all videos at one frame rate", ()


def _one_aspect(rows: CatalogRows) -> Finding:
    good = int(rows.readable.sum())
    label, n = max(summarise(rows).aspect_ratio, key=lambda item: item[1], default=("", 0))
    if good < ENOUGH or n < ONE_ASPECT * good:
        return None
    remedy = f'one ratio is enough: [buckets] aspect_ratios = ["{label}"]; generated clips of other ratios look worse'
    return f"{n / good:.0%} of the clips are about {label}", remedy, ()


# A rule that data_advice.toml has finds a mask of clips, and each other one says itself what it found.
RULES: dict[str, Callable[[CatalogRows], Any]] = {
    "unreadable": lambda rows: ~rows.readable,
    "captions_missing": lambda rows: rows.caption.is_null(),
    "captions_empty": lambda rows: pc.equal(pc.utf8_trim_whitespace(rows.caption.fill_null("-")), ""),
    "captions_garbled": lambda rows: pc.match_substring_regex(rows.caption.fill_null(""), "\ufffd|\\x00"),
    "captions_equal": _captions_equal,
    "captions_lines": lambda rows: pc.match_substring(rows.caption.fill_null(""), "\n"),
    "few_pictures": _few_pictures,
    "duplicates": _duplicates,
    "near_duplicates": lambda rows: rows.score("duplicate_rank") > 0,
    "black": lambda rows: rows.score("clipped_dark") >= ALL_DARK,
    "small": lambda rows: np.minimum(rows.height, rows.width) < SMALL_SIDE_PX,
    "short": lambda rows: rows.is_video & (rows.num_frames < SHORT_FRAMES),
    "long": lambda rows: rows.duration_seconds > LONG_SECONDS,
    "mixed_fps": _mixed_fps,
    "variable_fps": lambda rows: rows.variable_fps,
    "one_aspect": _one_aspect,
    "transparent": lambda rows: rows.has_alpha,
    "hdr": lambda rows: rows.is_hdr,
    "interlaced": lambda rows: rows.interlaced,
    "pixel_shape": lambda rows: (rows.pixel_aspect_ratio != 1) & (rows.pixel_aspect_ratio > 0),  # 0 is not known
    "mirrored": lambda rows: rows.mirrored,
    "hidden_frames": lambda rows: rows.hidden_frames > 0,
    "color_profile": lambda rows: rows.per_word("icc_profile", lambda name: not pictures.is_srgb(name)),
    "unusual_colors": lambda rows: (
        rows.full_range | rows.per_word("color_matrix", lambda name: name not in ("", "bt601", "bt709"))
    ),
}


_SIDES = r"(?i)\b(left|right)\b"


@dataclass(frozen=True)
class MirroredSides:
    """A dataset that is flipped, and the number of its clips whose captions name sides."""

    dataset: str
    clips: int


def mirrored_sides(datasets: Sequence[DatasetConfig], rows: CatalogRows) -> list[MirroredSides]:
    """Return the datasets that are flipped although captions name sides."""
    found = []
    for name in [d.dataset_name for d in datasets if d.flip > 0]:
        captions = rows.caption.filter(pa.array(rows.of_datasets([name]) & rows.readable))
        if clips := pc.sum(pc.match_substring_regex(captions, _SIDES)).as_py():
            found.append(MirroredSides(name, clips))
    return found


@dataclass(frozen=True)
class SharedFiles:
    """Two datasets, that of the outer folder first, and the number of files that both have."""

    datasets: list[str]
    files: int


def shared_files(datasets: Sequence[DatasetConfig], rows: CatalogRows) -> list[SharedFiles]:
    """Return pairs of datasets that overlap by mistake.

    Datasets are meant to overlap if one has a name, or if their captions or filters differ.
    """
    wide_first = sorted(datasets, key=lambda d: d.place.address.count("/"))
    pairs = [pair for pair in itertools.combinations(wide_first, 2) if _overlap_by_mistake(*pair)]
    number = _numbered({d.dataset_name: d for pair in pairs for d in pair}.values(), rows)
    overlaps = []
    for pair in pairs:
        names = [d.dataset_name for d in pair]
        wide, narrow = (number[name] for name in names)
        if count := int(np.isin(narrow, wide, kind="table").sum()):
            overlaps.append(SharedFiles(names, count))
    return overlaps


def _overlap_by_mistake(wide: DatasetConfig, narrow: DatasetConfig) -> bool:
    if not f"{narrow.place.address}/".startswith(f"{wide.place.address}/"):
        return False
    unnamed = wide.name is None and narrow.name is None
    return unnamed and (wide.caption, wide.filter) == (narrow.caption, narrow.filter)


def _numbered(datasets: Collection[DatasetConfig], rows: CatalogRows) -> dict[str, NDArray[np.int32]]:
    """Return a number for each file, the same in all datasets, so that strings are compared only once."""
    paths = []
    for dataset in datasets:
        own = rows.path.filter(pa.array(rows.of_datasets([dataset.dataset_name])))
        root, slash = (pa.scalar(text, own.type) for text in (dataset.place.address, "/"))
        paths.append(pc.binary_join_element_wise(root, own, slash))
    if not paths:
        return {}
    every = pa.concat_arrays(paths).dictionary_encode().indices.to_numpy()
    ends = np.cumsum([len(own) for own in paths])
    return {d.dataset_name: part for d, part in zip(datasets, np.split(every, ends[:-1]), strict=True)}
