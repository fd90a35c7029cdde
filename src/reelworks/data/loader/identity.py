"""Recognise clips in a catalog that changed since a segment was planned.

A clip's key is the uid that its file had when the run first used it. A uid is made of the dataset's name and the path
below its folder, so a dataset that was renamed, split, or swapped with another has new uids although its files are
the same. Such clips are recognised by content and path together; otherwise the epoch would train these files twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import blocks, hash_rng, units
from reelworks.core.arrays import I64, U64, Mask
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media.config import RenamedClips
from reelworks.data.schedule.cursor import Aliases, Excluded

Once = Callable[[Callable[[], Any]], Any]
_TEXTS = ("fingerprint", "root", "path", "dataset", "caption")
_RANGE = ("cut", "first_frame", "num_frames")
_TIME = "^([0-9a-f]+-)[0-9a-f]+-([0-9a-f]{32})$"  # of a large film, of which a copy has another time


@dataclass(frozen=True)
class Segment:
    """The live rows of a segment that was planned before, by ascending ordinals in its catalog at that version."""

    catalog: Catalog
    ordinal: I64
    aliases: Aliases

    @cached_property
    def uids(self) -> U64:
        """Uids of all rows of the catalog, indexed by ordinal."""
        return self.catalog.uids()

    def keys(self, ordinal: I64) -> U64:
        """Return the keys of rows of the catalog."""
        return self.aliases.keys(ordinal, self.uids[ordinal])

    def without(self, ordinal: I64, catalog: Catalog) -> Segment:
        """Return the segment without these rows of a catalog, if its own catalog grew to that one."""
        if not self.catalog.is_prefix_of(catalog):
            return self
        return replace(self, ordinal=self.ordinal[~_among(self.ordinal, ordinal)])


@dataclass(frozen=True)
class Identity:
    """Relation of a catalog's rows to the clips that a run knows.

    Attributes:
        ordinal, key: Each live row, ascending, and the key of its clip.
        kept: True for the rows that were live before, with the same ordinal.
        added, removed, edited: Numbers of clips.
        renamed: Numbers of clips whose files have other names, by former and present dataset.
    """

    ordinal: I64
    key: U64
    kept: Mask
    aliases: Aliases
    added: int = 0
    removed: int = 0
    edited: int = 0
    renamed: dict[tuple[str, str], int] = field(default_factory=dict)

    def lines(self, how: RenamedClips, *, begins: bool = False) -> list[str]:
        """Return lines to print about renamed clips, one for each pair of datasets; `begins` if all clips are trained again."""
        lines = []
        effect = 'they are trained as new clips because of data.renamed_clips = "new"'
        if begins:
            effect = "they are trained again, as all are"
        elif how == "same":
            effect = 'clips already trained in this epoch are not trained again (set data.renamed_clips = "new" to train them)'
        for (before, now), number in sorted(self.renamed.items()):
            same = f"the same file{'s' if number > 1 else ''}"
            clips = f"{units.plural(number, 'clip', 'are')} {same}"
            change = f"seems to be `{now}` now" if before != now else "has other paths now"
            lines.append(f"dataset `{before}` {change}: {clips}; {effect}")
        return lines


def identify(
    rows: CatalogRows,
    catalog: Catalog,
    former: Sequence[Segment],
    how: RenamedClips,
    older: Iterable[Segment] = (),
    once: Once = lambda work: work(),
) -> Identity:
    """Relate the live rows of the recipe's datasets to the clips that a run knows.

    Args:
        former: Segments of the epoch, latest first.
        how: Whether the same file under another name is the same clip or a new one.
        older: Other segments that the run recorded, latest first. What none of the epoch's segments had is compared with these:
            it is added to the epoch, but it is no new clip of the run, and no other clip may get its key.
        once: Calls a function on one rank, which alone reads `older`, and returns its result on all of them.
    """
    latest = former[0]
    grown = latest.catalog.is_prefix_of(catalog)
    kept = _among(rows.ordinal, latest.ordinal) if grown else np.zeros(len(rows), dtype=np.bool_)
    key = rows.uid.copy()
    key[kept] = latest.aliases.keys(rows.ordinal[kept], rows.uid[kept])
    new = np.flatnonzero(~kept)
    gone = _Gone.collect(former, key[kept])
    removed = int((~_among(latest.ordinal, rows.ordinal)).sum()) if grown else len(latest.ordinal)
    edited, renamed = 0, Counter[tuple[str, str]]()
    if len(new) and len(gone.key):
        matched, unchanged, renamed = _match(_Texts.from_rows(rows.take(new)), gone, how)
        known = matched >= 0
        key[new[known]] = gone.key[matched[known]]
        removed -= int(gone.latest[matched[known]].sum())
        edited = int(known.sum()) - (sum(renamed.values()) if how == "same" else 0) - unchanged
        new = new[~known]
    added = len(new)
    # Most rows of an older segment are live still; to search millions of keys for them would take seconds each time.
    left = (segment.without(rows.ordinal, catalog) for segment in older)
    others = np.concatenate([np.delete(key, new), gone.key])
    away = once(lambda: _Gone.collect(left, others)) if added else _Gone.collect((), others)
    if len(away.key):
        matched, _, _ = _match(_Texts.from_rows(rows.take(new)), away, how)
        known = matched >= 0
        key[new[known]] = away.key[matched[known]]
        new = new[~known]
    key = _without_collisions(key, new, np.concatenate([gone.key, away.key]), rows)
    other = key != rows.uid
    aliases = Aliases(rows.ordinal[other], key[other])
    return Identity(rows.ordinal, key, kept, aliases, added, removed, edited, dict(renamed))


def carry_over(identity: Identity, former: Segment, ordinal: I64, copy: I64, excluded: Excluded) -> Excluded:
    """Translate consumed clips into rows of the present catalog.

    `ordinal` and `copy` are the clips of the `former` segment's catalog that it and the segments before it consumed; of
    `excluded`, its excluded clips, only those without a row in that catalog are read.
    """
    stays = _among(ordinal, identity.ordinal[identity.kept])
    consumed = Excluded().with_places(ordinal[stays], copy[stays])
    key = np.concatenate([former.keys(ordinal[~stays]), excluded.gone_key])
    copy = np.concatenate([copy[~stays], excluded.gone_copy])
    new = np.flatnonzero(~identity.kept)
    order = new[np.argsort(identity.key[new], kind="stable")]
    place = blocks.find(identity.key[order], key)
    matched = place >= 0
    consumed = consumed.with_places(identity.ordinal[order][place[matched]], copy[matched])
    return Excluded(consumed.bits, key[~matched], copy[~matched])


def former_places(identity: Identity, former: Segment) -> I64:
    """Return the index among the rows of the latest `former` segment of each live row, -1 where it has none."""
    place = np.full(len(identity.ordinal), -1, dtype=np.int64)
    place[identity.kept] = np.searchsorted(former.ordinal, identity.ordinal[identity.kept])
    new = np.flatnonzero(~identity.kept)
    if len(new):
        key = former.keys(former.ordinal)
        order = np.argsort(key, kind="stable")
        at = blocks.find(key[order], identity.key[new])
        place[new] = np.where(at >= 0, order[at], -1)
    return place


@dataclass(frozen=True)
class _Texts:
    """The texts by which rows are compared, as 64-bit hashes; `file` is the path on disk, `name` its last part."""

    uid: U64
    content: U64
    file: U64
    path: U64
    name: U64
    caption: U64
    dataset: list[str]
    readable: Mask
    paths: Any

    @classmethod
    def from_rows(cls, rows: Any) -> _Texts:
        """Read the texts of catalog rows, or of a table with the columns of `_TEXTS`, `_RANGE` and `uid`."""
        column = partial(getattr, rows) if isinstance(rows, CatalogRows) else rows.combine_chunks().column
        content, root, path, dataset, caption = (column(name).cast(pa.large_string()) for name in _TEXTS)
        is_range = np.asarray(pc.not_equal(column("cut").cast(pa.string()), ""))
        first, count = (np.asarray(column(name))[is_range] for name in _RANGE[1:])

        def hashes(texts: Any) -> U64:
            """Hash texts, for a clip that is a range of its file together with the range."""
            result = hash_rng.text_words(texts.to_pylist())
            result[is_range] = hash_rng.hash64(result[is_range], first, count)
            return result

        return cls(
            np.asarray(column("uid")),
            hashes(pc.replace_substring_regex(content, pattern=_TIME, replacement=r"\1\2")),
            hashes(pc.binary_join_element_wise(root, path, pa.scalar("/", pa.large_string()))),
            hashes(path),
            hashes(pc.replace_substring_regex(path, pattern="^.*/", replacement="")),
            hashes(caption.fill_null("")),
            dataset.to_pylist(),
            np.asarray(pc.not_equal(content, "")),
            path,
        )


@dataclass(frozen=True)
class _Gone:
    """Clips that were live in earlier segments and have no live row now, each in its latest state."""

    key: U64
    latest: Mask
    texts: _Texts

    @classmethod
    def collect(cls, former: Iterable[Segment], live: U64) -> _Gone:
        """Collect the clips whose key is not among the live keys."""
        held, keys, tables, latest = np.sort(live), [], [], []
        for i, segment in enumerate(former):
            key = segment.keys(segment.ordinal)
            mine = np.flatnonzero(blocks.find(held, key) < 0)
            keys.append(key[mine])
            if len(mine):
                columns = segment.catalog.columns("uid", *_TEXTS, *_RANGE)
                tables.append(columns.take(pa.array(segment.ordinal[mine])))
            latest.append(np.full(len(mine), i == 0))
            held = np.union1d(held, key[mine]) if len(mine) else held
        if not tables:
            return cls(np.zeros(0, np.uint64), np.zeros(0, np.bool_), None)  # type: ignore[arg-type]
        table = pa.concat_tables(tables).unify_dictionaries()
        return cls(np.concatenate(keys), np.concatenate(latest), _Texts.from_rows(table))


def _match(ours: _Texts, gone: _Gone, how: RenamedClips) -> tuple[I64, int, Counter[tuple[str, str]]]:
    """Match new rows with clips that are gone, by the most reliable criteria first.

    Returns:
        Index into `gone` of each new row, -1 for a new clip; the number of clips with unchanged name, content and caption; and
        the numbers of renamed clips by former and present dataset.
    """
    theirs = gone.texts
    matched = np.full(len(ours.uid), -1, dtype=np.int64)
    hash64 = hash_rng.hash64
    _pair(matched, gone.key, hash64(ours.uid, ours.content), hash64(theirs.uid, theirs.content))
    same, renamed = np.flatnonzero(matched >= 0), matched.copy()
    unchanged = int((ours.caption[same] == theirs.caption[matched[same]]).sum())
    for criterion in ("file", "path", "name"):
        a, b = getattr(ours, criterion), getattr(theirs, criterion)
        # A file renamed within its dataset is a new clip: names count only for datasets that lost no clip.
        may = ours.readable if criterion != "name" else ours.readable & ~np.isin(ours.dataset, theirs.dataset)
        _pair(renamed, gone.key, hash64(ours.content, a), hash64(theirs.content, b), may)
    names = Counter((theirs.dataset[renamed[i]], ours.dataset[i]) for i in np.flatnonzero(renamed != matched).tolist())
    if how == "same":
        matched = renamed
    for was, now in sorted(names, key=lambda pair: -names[pair]) if how == "same" else ():
        # The remaining clips of a renamed dataset were edited.
        left, right = np.array(ours.dataset) == now, np.array(theirs.dataset) == was
        _pair(matched, gone.key, ours.file, theirs.file, left, right)
        _pair(matched, gone.key, ours.path, theirs.path, left, right)
        _pair_moved(matched, gone, ours, left, right)
    _pair(matched, gone.key, ours.uid, theirs.uid)
    return matched, unchanged, names


def _pair(matched: I64, gone: U64, ours: U64, theirs: U64, may: Mask | bool = True, those: Mask | bool = True) -> None:
    """Match unmatched rows one to one with unmatched clips of the same code, equal codes in their order."""
    free = np.ones(len(gone), dtype=np.bool_)
    free[matched[matched >= 0]] = False
    left, right = np.flatnonzero((matched < 0) & may), np.flatnonzero(free & those)
    a, b = _numbered(ours[left]), _numbered(theirs[right])
    order = np.argsort(b, kind="stable")
    place = blocks.find(b[order], a)
    equal = place >= 0
    matched[left[equal]] = right[order[place[equal]]]


def _pair_moved(matched: I64, gone: _Gone, ours: _Texts, left: Mask, right: Mask) -> None:
    """Match unmatched rows with clips whose dataset began at another folder: one path is the end of the other."""
    theirs, candidate = gone.texts, matched.copy()
    right = right & ~np.isin(np.arange(len(gone.key)), matched[matched >= 0])
    left = left & (matched < 0)
    may, those = left & _single(ours.name, left), right & _single(theirs.name, right)
    _pair(candidate, gone.key, ours.name, theirs.name, may, those)
    at = np.flatnonzero(candidate != matched)
    now = ours.paths.take(pa.array(at)).to_pylist()
    was = theirs.paths.take(pa.array(candidate[at])).to_pylist()
    for i, a, b in zip(at.tolist(), now, was, strict=True):
        if f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}"):
            matched[i] = candidate[i]


def _single(code: U64, among: Mask) -> Mask:
    """Return True for the codes that occur at most once among the chosen ones."""
    codes, times = np.unique(code[among], return_counts=True)
    return ~np.isin(code, codes[times > 1])


def _numbered(code: U64) -> U64:
    """Return codes that are all different, by numbering equal ones."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    begins = np.r_[True, ordered[1:] != ordered[:-1]] if len(code) else np.zeros(0, np.bool_)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(code)), 0))
    numbered = np.empty_like(code)
    numbered[order] = hash_rng.hash64(ordered, np.arange(len(code)) - first)
    return numbered


def _without_collisions(key: U64, new: I64, gone: U64, rows: CatalogRows) -> U64:
    """Assign another key to new clips whose uid is the key of another clip, as after a swap of dataset names."""
    held = np.sort(np.concatenate([np.delete(key, new), gone]))
    again: tuple[int, ...] = ()
    taken = new[blocks.find(held, key[new]) >= 0]
    while len(taken):  # more than once if a clip that was given such a key moved, and its name and content came back
        content = hash_rng.text_words(rows.fingerprint.take(pa.array(taken)).to_pylist())
        key[taken] = hash_rng.hash64("another file", rows.uid[taken], content, *again)
        taken, again = taken[blocks.find(held, key[taken]) >= 0], (*again, 1)
    return key


def _among(ordinal: I64, others: I64) -> Mask:
    """Return True for the ordinals that are among others."""
    return blocks.mask(others, max(int(ordinal.max(initial=-1)), int(others.max(initial=-1))) + 1)[ordinal]
