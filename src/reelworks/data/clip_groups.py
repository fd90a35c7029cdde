"""Keys of the groups of clips that lie together: of one source file, or of one folder.

Clips of a group are held out together, and with `data.locality` are read near each other.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.rows import CatalogRows
from reelworks.core.hash_rng import hash64, text_words


def keys(rows: CatalogRows, by: Literal["file", "folder"]) -> NDArray[np.uint64]:
    """Return a key for the group of each row; a file that is its own group has its uid as key."""
    if by == "folder":  # clips directly in a dataset's folder share one
        folder = pc.replace_substring_regex(rows.path, pattern=r"/?[^/]*$", replacement="").dictionary_encode()
        return hash64(_hashes(rows.dataset), _hashes(folder))
    groups = rows.uid.copy()
    shared = np.flatnonzero(rows.is_range | ~rows.own_group)
    if len(shared):
        groups[shared] = _hashes(rows.take(shared).group.dictionary_encode())
    return groups


def _hashes(words: Any) -> NDArray[np.uint64]:
    """Hash a dictionary-encoded column, each distinct word once, as `hash_int` does."""
    word_hashes = hash64(text_words(words.dictionary.to_pylist()))
    return np.asarray(word_hashes[np.asarray(words.indices)])
