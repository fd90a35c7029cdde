"""Recognises clips in a catalog that changed since a segment was planned.

A clip's key is the uid under which the run first met its file. A uid is made of the dataset's name and the path
below its folder, so a dataset that was renamed, split, or swapped with another has other uids although its files
are the same. Content and path together tell that: without it the epoch would train these files twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.store import Catalog
from reelworks.core import hash_rng
from reelworks.media.config import RenamedClips
from reelworks.schedule.cursor import Aliases, Excluded

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
_TEXTS = ("fingerprint", "root", "path", "dataset")


@dataclass(frozen=True)
class Known:
    """The live rows of a segment that was planned before.

    Attributes:
        catalog: The catalog, at the version that the segment was planned on.
        ordinal: The rows, ascending.
        aliases: Those whose key is not their uid.
    """

    catalog: Catalog
    ordinal: I64
    aliases: Aliases

    @cached_property
    def uids(self) -> U64:
        """Uids of all rows of the catalog, by ordinal."""
        uids: U64 = self.catalog.columns("uid").column("uid").to_numpy()
        return uids

    def keys(self, ordinal: I64) -> U64:
        """Keys of rows of the catalog."""
        return self.aliases.keys(ordinal, self.uids[ordinal])


@dataclass(frozen=True)
class Identity:
    """How the rows of a catalog relate to the clips that a run knows.

    Attributes:
        ordinal, key: Each live row, ascending, and the key of its clip.
        kept: True for the rows that were live before, with the same ordinal.
        aliases: Those whose key is not their uid.
        added, removed, edited: Clips by what happened to them.
        renamed: Clips by dataset before and dataset now, of those whose files have other names.
    """

    ordinal: I64
    key: U64
    kept: NDArray[np.bool_]
    aliases: Aliases
    added: int = 0
    removed: int = 0
    edited: int = 0
    renamed: dict[tuple[str, str], int] = field(default_factory=dict)

    def lines(self, how: RenamedClips) -> list[str]:
        """Tell renamed clips, a line for each pair of datasets."""
        said = []
        for (before, now), number in sorted(self.renamed.items()):
            clips = (
                f"{number} clip{'s are' if number > 1 else ' is'} the same file{'s' if number > 1 else ''}"
            )
            where = f"seems to be `{now}` now" if before != now else "has other paths now"
            then = (
                'those done in this epoch are not trained again (data.renamed_clips = "new" would)'
                if how == "same"
                else 'they are trained as new clips, as data.renamed_clips = "new" says'
            )
            said.append(f"dataset `{before}` {where}: {clips}; {then}")
        return said


def identify(rows: CatalogRows, catalog: Catalog, former: Sequence[Known], how: RenamedClips) -> Identity:
    """Find the clips that a run knows among the rows of a catalog.

    Args:
        rows: The live rows of the recipe's datasets.
        catalog: The catalog that they are of.
        former: Segments planned before, the latest first.
        how: Whether the same file under another name is the same clip.
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
        # A catalog that was made anew has other rows of the same files; one that grew, of those that changed.
        edited = (
            int(known.sum()) - (sum(renamed.values()) if how == "same" else 0) - (0 if grown else unchanged)
        )
        new = new[~known]
    key = _without_collisions(key, new, gone.key, rows)
    other = key != rows.uid
    return Identity(
        rows.ordinal,
        key,
        kept,
        Aliases(rows.ordinal[other], key[other]),
        added=len(new),
        removed=removed,
        edited=edited,
        renamed=dict(renamed),
    )


def carry_over(identity: Identity, former: Known, ordinal: I64, copy: I64, excluded: Excluded) -> Excluded:
    """Translate the clips that are consumed into rows of the catalog as it is now.

    Args:
        identity: The rows of now.
        former: The segment that consumed them.
        ordinal, copy: Rows of its catalog that it, and segments before it, consumed.
        excluded: What it held of clips that had no row in its catalog either.
    """
    kept = identity.ordinal[identity.kept]
    stays = _among(ordinal, kept)
    consumed = Excluded.none().with_places(ordinal[stays], copy[stays])
    key = np.concatenate([former.keys(ordinal[~stays]), excluded.gone_key])
    copy = np.concatenate([copy[~stays], excluded.gone_copy])
    new = np.flatnonzero(~identity.kept)
    order = new[np.argsort(identity.key[new], kind="stable")]
    place = _find(identity.key[order], key)
    there = place >= 0
    consumed = consumed.with_places(identity.ordinal[order][place[there]], copy[there])
    return Excluded(consumed.bits, key[~there], copy[~there])


@dataclass(frozen=True)
class _Texts:
    """Words of rows by which they are told apart, as 64-bit hashes."""

    uid: U64
    content: U64
    file: U64
    path: U64
    name: U64
    dataset: list[str]
    readable: NDArray[np.bool_]
    paths: Any

    @classmethod
    def from_rows(cls, rows: Any) -> _Texts:
        """Hash the texts of rows, or of a table with the same columns."""
        texts = {name: _plain(rows, name) for name in _TEXTS}
        name = pc.replace_substring_regex(texts["path"], pattern="^.*/", replacement="")
        words = {key: hash_rng.text_words(text.to_pylist()) for key, text in texts.items()}
        uid = rows.uid if isinstance(rows, CatalogRows) else rows.column("uid").to_numpy()
        return cls(
            uid,
            words["fingerprint"],
            hash_rng.text_words(
                pc.binary_join_element_wise(
                    texts["root"], texts["path"], pa.scalar("/", pa.large_string())
                ).to_pylist()
            ),
            words["path"],
            hash_rng.text_words(name.to_pylist()),
            texts["dataset"].to_pylist(),
            pc.not_equal(texts["fingerprint"], "").to_numpy(zero_copy_only=False),
            texts["path"],
        )


def _plain(rows: Any, name: str) -> Any:
    column = getattr(rows, name) if isinstance(rows, CatalogRows) else rows.column(name).combine_chunks()
    return column.cast(pa.large_string())


@dataclass(frozen=True)
class _Gone:
    """Clips that were live once in the epoch and whose rows are not, each as it was last."""

    key: U64
    latest: NDArray[np.bool_]
    texts: _Texts

    @classmethod
    def collect(cls, former: Sequence[Known], there: U64) -> _Gone:
        """Collect those whose key is not among the keys that are there."""
        held, keys, tables, latest = np.sort(there), [], [], []
        for i, known in enumerate(former):
            key = known.keys(known.ordinal)
            mine = np.flatnonzero(_find(held, key) < 0)
            keys.append(key[mine])
            columns = known.catalog.columns("uid", *_TEXTS) if len(mine) else None
            if columns is not None:
                tables.append(columns.take(pa.array(known.ordinal[mine])))
            latest.append(np.full(len(mine), i == 0))
            held = np.union1d(held, key)
        if not tables:
            return cls(np.zeros(0, np.uint64), np.zeros(0, np.bool_), None)  # type: ignore[arg-type]
        table = pa.concat_tables(tables).unify_dictionaries()
        return cls(np.concatenate(keys), np.concatenate(latest), _Texts.from_rows(table))


def _match(ours: _Texts, gone: _Gone, how: RenamedClips) -> tuple[I64, int, Counter[tuple[str, str]]]:
    """Match new rows with clips that are gone; the surest signs first.

    Returns:
        Place in `gone` of each new row, -1 where it is a new clip; how many have their name and content; and the
        renamed ones.
    """
    theirs = gone.texts
    matched = np.full(len(ours.uid), -1, dtype=np.int64)
    _pair(
        matched,
        gone.key,
        hash_rng.hash64(ours.uid, ours.content),
        hash_rng.hash64(theirs.uid, theirs.content),
    )
    unchanged, renamed = int((matched >= 0).sum()), matched.copy()
    for sign in ("file", "path", "name"):
        a, b = getattr(ours, sign), getattr(theirs, sign)
        may = ours.readable if sign != "name" else ours.readable & _elsewhere(ours, theirs)
        _pair(renamed, gone.key, hash_rng.hash64(ours.content, a), hash_rng.hash64(theirs.content, b), may)
    names = Counter(
        (theirs.dataset[renamed[i]], ours.dataset[i]) for i in np.flatnonzero(renamed != matched).tolist()
    )
    if how == "same":
        matched = renamed
    for was, now in sorted(names, key=lambda pair: -names[pair]) if how == "same" else ():
        # The others of a renamed dataset were edited.
        left, right = np.array(ours.dataset) == now, np.array(theirs.dataset) == was
        _pair(matched, gone.key, ours.file, theirs.file, left, right)
        _pair(matched, gone.key, ours.path, theirs.path, left, right)
        _pair_moved(matched, gone, ours, left, right)
    _pair(matched, gone.key, ours.uid, theirs.uid)
    return matched, unchanged, names


def _elsewhere(ours: _Texts, theirs: _Texts) -> NDArray[np.bool_]:
    """True for rows of datasets that no clip that is gone was of: a file renamed in its dataset is a new clip."""
    return ~np.isin(np.array(ours.dataset), np.array(theirs.dataset))


def _pair(
    matched: I64,
    gone: U64,
    ours: U64,
    theirs: U64,
    may: NDArray[np.bool_] | bool = True,
    those: NDArray[np.bool_] | bool = True,
) -> None:
    """Match open rows one to one with open clips of the same code; of equal ones in their order."""
    free = np.ones(len(gone), dtype=np.bool_)
    free[matched[matched >= 0]] = False
    left, right = np.flatnonzero((matched < 0) & may), np.flatnonzero(free & those)
    a, b = _numbered(ours[left]), _numbered(theirs[right])
    order = np.argsort(b, kind="stable")
    place = _find(b[order], a)
    there = place >= 0
    matched[left[there]] = right[order[place[there]]]


def _pair_moved(
    matched: I64, gone: _Gone, ours: _Texts, left: NDArray[np.bool_], right: NDArray[np.bool_]
) -> None:
    """Match open rows with clips whose dataset began at another folder: one path is the end of the other."""
    theirs, found = gone.texts, matched.copy()
    right = right & ~np.isin(np.arange(len(gone.key)), matched[matched >= 0])
    left = left & (matched < 0)
    _pair(
        found,
        gone.key,
        ours.name,
        theirs.name,
        left & _single(ours.name, left),
        right & _single(theirs.name, right),
    )
    at = np.flatnonzero(found != matched)
    now, was = ours.paths.take(pa.array(at)).to_pylist(), theirs.paths.take(pa.array(found[at])).to_pylist()
    for i, a, b in zip(at.tolist(), now, was, strict=True):
        if f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}"):
            matched[i] = found[i]


def _single(code: U64, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for the codes that are not there twice among the chosen ones."""
    codes, times = np.unique(code[among], return_counts=True)
    return ~np.isin(code, codes[times > 1])


def _numbered(code: U64) -> U64:
    """Codes that are all different: equal ones are numbered."""
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    begins = np.r_[True, ordered[1:] != ordered[:-1]] if len(code) else np.zeros(0, np.bool_)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(code)), 0))
    numbered = np.empty_like(code)
    numbered[order] = hash_rng.hash64(ordered, np.arange(len(code)) - first)
    return numbered


def _without_collisions(key: U64, new: I64, gone: U64, rows: CatalogRows) -> U64:
    """Give another key to new clips whose uid is the key of another clip, live or gone, as after a swap of names."""
    if len(new):
        held = np.sort(np.concatenate([np.delete(key, new), gone]))
        taken = new[_find(held, key[new]) >= 0]
        content = hash_rng.text_words(rows.fingerprint.take(pa.array(taken)).to_pylist())
        key[taken] = hash_rng.hash64("another file", rows.uid[taken], content)
    return key


def _find(ordered: NDArray[Any], wanted: NDArray[Any]) -> I64:
    """Places of values in an ascending array, -1 where they are not there."""
    if not len(ordered):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[place] == wanted, place, -1)


def _among(ordinal: I64, ascending: I64) -> NDArray[np.bool_]:
    """True for the ordinals that another set of them holds."""
    held = np.zeros(max(int(ordinal.max(initial=-1)), int(ascending.max(initial=-1))) + 1, dtype=np.bool_)
    held[ascending] = True
    return held[ordinal]
