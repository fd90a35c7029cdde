"""What holds in every catalog; broken, it is an error that says where, never a guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.rows import CatalogRows
from reelworks.core.errors import UserError

_NOT_NEGATIVE = (
    "size_bytes",
    "num_frames",
    "height",
    "width",
    "fps",
    "duration_seconds",
    "bit_depth",
    "rotation",
)
_POSITIVE_IF_READABLE = ("num_frames", "height", "width")
_KINDS = ("video", "image")
# Training must not open what nobody scanned: nothing, an absolute path, a way out of the folder.
OUTSIDE = r"^$|^/|(^|/)\.\.(/|$)|\x00"


def damaged(path: Path, problem: str) -> UserError:
    """Error for a catalog that cannot be trusted."""
    return UserError(
        f"the catalog is damaged: {problem}",
        field="catalog",
        value=str(path),
        remedy="restore the folder from a backup, or scan the data into a new catalog with -o DIR",
    )


def check_rows(rows: CatalogRows, path: Path) -> None:
    """Check ordinals, places and measures of all rows.

    Raises:
        UserError: Ordinals are not 0, 1, 2, …, a file does not lie below its folder, a measure is
            negative, not finite, or 0 in a row without an error, or a score is infinite.
    """
    _refuse(rows.ordinal != np.arange(len(rows)), rows, "ordinal", path)
    _refuse(_mask(pc.match_substring_regex(rows.path, OUTSIDE)), rows, "path", path)
    _refuse(~_mask(pc.starts_with(rows.root.dictionary, "/"))[rows.root.indices], rows, "root", path)
    kinds = _mask(pc.is_in(rows.kind.dictionary, pa.array(_KINDS)))
    _refuse(~kinds[rows.kind.indices], rows, "kind", path)
    for name in _NOT_NEGATIVE:
        values = getattr(rows, name)
        _refuse(~np.isfinite(values) | (values < 0), rows, name, path)
    for name in _POSITIVE_IF_READABLE:
        _refuse(rows.readable & (getattr(rows, name) < 1), rows, name, path)
    for name, score in rows.scores.items():
        _refuse(np.isinf(score), rows, name, path)


def _mask(values: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask


def _refuse(wrong: NDArray[np.bool_], rows: CatalogRows, name: str, path: Path) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        values: Any = rows.scores[name] if name in rows.scores else getattr(rows, name)
        value: Any = values[first]
        raise damaged(path, f"row {first} ({rows.path[first].as_py()!r}) has {name} = {value}")


def check_retired(ordinals: NDArray[np.int64], first: int, path: Path) -> None:
    """Check that a part retires rows of earlier parts only, `first` being its own first ordinal.

    Raises:
        UserError: It does not.
    """
    if ordinals.min() < 0 or ordinals.max() >= first:
        raise damaged(path, f"it retires a row that is not among the {first} before it")


def check_one_row_per_uid(live: CatalogRows, path: Path) -> None:
    """Check the invariant that everything else rests on.

    Raises:
        UserError: Two live rows have one uid.
    """
    ordered = np.sort(live.uid)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        names = live.path.take(np.flatnonzero(live.uid == twice[0])).to_pylist()
        raise damaged(path, f"two live rows have the uid {int(twice[0])}: {', '.join(names)}")
