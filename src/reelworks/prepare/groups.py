"""Which clips belong together: they are held out together, and with locality read together."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.rows import CatalogRows
from reelworks.core.draws import hash64, text_words


def of_rows(rows: CatalogRows, by: Literal["file", "folder"]) -> NDArray[np.uint64]:
    """A number for what each row belongs to; a file that is its own group is known by its uid."""
    if by == "folder":
        return _folders(rows)
    own = pc.equal(rows.group, rows.path).to_numpy(zero_copy_only=False)
    groups = rows.uid.copy()
    shared = np.flatnonzero(~own)
    groups[shared] = _hashes(rows.group.take(pa.array(shared)).dictionary_encode())
    return groups


def _folders(rows: CatalogRows) -> NDArray[np.uint64]:
    """A number for the dataset and folder of each row; clips right in a dataset's folder share one."""
    folder = pc.replace_substring_regex(rows.path, pattern=r"/?[^/]*$", replacement="").dictionary_encode()
    return hash64(_hashes(rows.dataset), _hashes(folder))


def _hashes(words: Any) -> NDArray[np.uint64]:
    """Hash a dictionary-encoded column: each word once, as `hash_int` does."""
    of_word = hash64(text_words(words.dictionary.to_pylist()))
    hashes: NDArray[np.uint64] = of_word[words.indices.to_numpy(zero_copy_only=False)]
    return hashes
