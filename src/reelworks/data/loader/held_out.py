"""Decide which clips are held out for validation, by their content, whatever names their files have.

Clips with a key in common are on one side, in every epoch, stage and world size. The key is that of the content, which all
ranges of a file and all copies of it share; of near-duplicates, where they were measured, that of their group; of a folder
that is held out as a whole, the least of its contents. A file whose content the scan did not read has the key of its name.
Clips that several of these connect have one key: that of the first group of near-duplicates among them, whose number stays while
clips come and go, or else of the least content.

Clips of datasets with `prior_prediction` are not trained towards themselves, so that no loss of them tells what was learned:
they are held out only where they share a key with others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np

from reelworks.core import blocks, digests
from reelworks.core.arrays import I64, U64, Mask
from reelworks.data.buckets import assign
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.loader import duplicates
from reelworks.data.loader.data_spec import DataSpec

_NEAR_DUPLICATES, _CONTENT, _NAME = range(3)  # the first that a set has gives its key


def held_out(rows: CatalogRows, spec: DataSpec, own: Collection[str] = ()) -> Mask:
    """Return which rows are held out: a share of files, or of folders; `own` is that of `duplicates.numbers`."""
    if not spec.split:
        return np.zeros(len(rows), dtype=np.bool_)
    key = keys(rows, spec.group, own)
    held = assign.held_out(spec.seed, key, spec.split)
    preserved = preserving(rows, spec)
    return held & (~preserved | np.isin(key, key[~preserved])) if preserved.any() else held


def preserving(rows: CatalogRows, spec: DataSpec) -> Mask:
    """Return which rows have the base's prediction as target, and not the clip (`prior_prediction`)."""
    return rows.of_datasets([dataset.dataset_name for dataset in spec.datasets if dataset.prior_prediction])


def keys(rows: CatalogRows, by: Literal["file", "folder"], own: Collection[str] = ()) -> U64:
    """Return the key of each row, equal for all that are held out together."""
    key = rows.content_keys()
    unread = np.flatnonzero(key == digests.NO_CONTENT)
    if len(unread):
        key[unread] = rows.take(unread).group_keys(by)
    links = list(_links(rows, by, own))
    return _joined(key, unread, links) if links else key


def _links(rows: CatalogRows, by: Literal["file", "folder"], own: Collection[str]) -> Iterator[tuple[int, I64, U64]]:
    """Yield what connects rows besides their content: its kind, the rows, and an equal number for those that it connects."""
    at, number = duplicates.numbers(rows, own)
    if len(at):
        yield _NEAR_DUPLICATES, at, number
    if by == "folder":
        yield _NAME, np.arange(len(rows)), rows.group_keys("folder")
    elif len(at := np.flatnonzero(~rows.own_group)):
        yield _NAME, at, rows.take(at).group_keys("file")


def _joined(key: U64, unread: I64, links: list[tuple[int, I64, U64]]) -> U64:
    """Return the keys of the sets that links make of rows with these keys."""
    own, other = (np.concatenate(each) for each in ([key[at] for _, at, _ in links], [group for *_, group in links]))
    nodes, index = np.unique(np.concatenate([own, other]), return_inverse=True)
    kind = np.full(len(nodes), _CONTENT)
    kind[np.isin(nodes, key[unread])] = _NAME
    for what, _, group in links:
        kind[np.searchsorted(nodes, group)] = what
    label = blocks.components(len(nodes), index.reshape(2, -1).T)
    first = np.full(len(nodes), np.iinfo(np.int64).max)
    np.minimum.at(first, label, kind * len(nodes) + np.arange(len(nodes)))
    of_node = nodes[first[label] % len(nodes)]

    def joined(key: U64) -> U64:
        at = blocks.find(nodes, key)
        return np.where(at >= 0, of_node[at], key)

    return blocks.elementwise(joined, key, dtype=np.uint64)
