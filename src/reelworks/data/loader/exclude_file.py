"""Read the list of clips not to train, a text file that a recipe names as its `exclude_file`, and add clips to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import digests, files, user_files
from reelworks.core.arrays import Mask
from reelworks.core.errors import UserError
from reelworks.data.catalog.store.rows import CatalogRows, without_range

_OTHER_FILES = (".toml", ".parquet")
RENAME = "rename the file without line breaks, and without spaces or # at its ends"


@dataclass(frozen=True)
class ExcludeList:
    """The distinct lines of a list of clips not to train, each named as "dataset/path"."""

    lines: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return the digest of the lines, independent of their order and of comments."""
        return digests.digest_json(sorted(self.lines))

    def rows(self, rows: CatalogRows) -> Mask:
        """Return True for the rows that a line names."""
        named = np.zeros(len(rows), dtype=np.bool_)
        named[[row for found in self._matches(rows).values() for row in found]] = True
        return named

    def unmatched(self, rows: CatalogRows) -> list[str]:
        """Return the lines that name no row."""
        matches = self._matches(rows)
        return [line for line in self.lines if not any(clip in matches for clip in _readings(line))]

    def _matches(self, rows: CatalogRows) -> dict[str, list[int]]:
        """Return the rows of each clip or file that a line names; of a line's readings the first that is a clip counts."""
        known = _rows_by_name(rows, {clip for line in self.lines for clip in _readings(line)})
        chosen = (next((clip for clip in _readings(line) if clip in known), None) for line in self.lines)
        return {clip: known[clip] for clip in chosen if clip is not None}


def _readings(line: str) -> list[str]:
    """Return the clips that a line may name: a `#` may belong to a file name or begin a comment after a path."""
    path, comment, _ = line.partition(" #")
    return [line, path.rstrip()] if comment else [line]


def _rows_by_name(rows: CatalogRows, clips: set[str]) -> dict[str, list[int]]:
    """Return the rows of those `clips` that exist, by "dataset/path", which names all ranges of a file, or by label."""
    rows_of: dict[str, list[int]] = {}
    # Compare the paths alone: joining millions of them with their datasets would copy them all.
    for dataset in set(rows.dataset.dictionary.to_pylist()):
        below = [clip.removeprefix(f"{dataset}/") for clip in clips if clip.startswith(f"{dataset}/")]
        below += [without_range(path) for path in below]
        if not below:
            continue
        inside = pc.is_in(rows.path, value_set=pa.array(below, type=rows.path.type))
        for row in np.flatnonzero(inside.to_numpy(zero_copy_only=False)).tolist():
            if rows.dataset_name(row) == dataset:
                for name in {rows.label(row), f"{dataset}/{rows.path[row].as_py()}"} & clips:
                    rows_of.setdefault(name, []).append(row)
    return rows_of


def is_listable(label: str) -> bool:
    """Whether a line of a text file can name a clip."""
    return label == label.strip() and not label.startswith("#") and "\n" not in label and "\r" not in label


def append(file: Path, labels: Sequence[str], *, field: str = "exclude_file") -> int:
    """Append clips to a list, which is made if it is not there, also for none; lines that it has stay as they are.

    Args:
        labels: "dataset/path" of each clip, with the frames of a range.
        field: Option or key that names the file.

    Returns:
        The number of clips that it did not list before.

    Raises:
        UserError: A line cannot name a clip, or the file is no list, or cannot be read or written.
    """
    if file.suffix.lower() in _OTHER_FILES:
        raise UserError(
            "a list of clips not to train is a text file, and no recipe or table",
            code="not-a-list",
            field=field,
            value=str(file),
            remedy=f"name {file.with_suffix('.txt').name}, which is made if it is not there",
        )
    for label in labels:
        if not is_listable(label):
            raise UserError(
                "a line of a list cannot name this clip",
                code="clip-not-listable",
                field="exclude_file",
                value=label,
                remedy=RENAME,
            )
    known = set(read_list(str(file)).lines) if file.exists() else set()
    new = [label for label in dict.fromkeys(labels) if label not in known]
    if new or not file.exists():
        text = read(file)
        text += "\n" * bool(text and not text.endswith("\n")) + "".join(f"{label}\n" for label in new)
        files.write_for(field, file, text.encode())
    return len(new)


def read_list(path: str | None) -> ExcludeList:
    """Read a list; None stands for an empty one."""
    # splitlines() would also split at characters that a file name may contain
    lines = () if path is None else map(str.strip, re.split(r"[\r\n]", _text(Path(path))))
    return ExcludeList(tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#"))))


def read(file: Path) -> str:
    """Return the text of a list with its line ends as they are; "" if it is not there."""
    return _text(file) if file.exists() else ""


def _text(file: Path) -> str:
    try:
        return user_files.read_bytes(file, user_files.TABLE).decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"the file cannot be read ({error.strerror})",
            code="file-unreadable",
            field="exclude_file",
            value=str(file),
            remedy="check the path; relative paths start at the folder in which the command runs",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"the file is not UTF-8, from byte {error.start} on",
            code="not-utf-8",
            field="exclude_file",
            value=str(file),
            remedy="save the file as UTF-8",
        ) from error
