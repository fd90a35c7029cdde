"""Decide which clips may be trained, before shapes are looked at: filters, captions, companions, the exclude list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.catalog import filter_expression, filters, template
from reelworks.catalog.companions import Found, Problem
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.filter_expression import NUMBERS
from reelworks.catalog.rows import CatalogRows
from reelworks.core import digests
from reelworks.core.errors import UserError


def exclusion_reasons(
    rows: CatalogRows,
    datasets: Sequence[DatasetConfig],
    *,
    companions: Iterable[Found],
    in_exclude_file: NDArray[np.bool_],
) -> NDArray[np.int8]:
    """Reason of each row, or `Reason.NONE`; of several the last one here.

    Args:
        rows: Rows of the catalog.
        datasets: The recipe's.
        companions: Those of the rows, of each kind that some dataset has.
        in_exclude_file: True for rows that the exclude list names.
    """
    excluded = np.full(len(rows), Reason.NONE, dtype=np.int8)
    for text in {d.filter for d in datasets if d.filter is not None}:
        its = rows.of_datasets([d.dataset_name for d in datasets if d.filter == text])
        excluded[its & ~filters.keeps(rows, text)] = Reason.FILTERED
    for found in companions:
        excluded[found.problem != Problem.NONE] = Reason.NO_COMPANION
    filled = rows.of_datasets([d.dataset_name for d in datasets if d.missing_caption is not None])
    excluded[~rows.captioned & ~filled] = Reason.NO_CAPTION
    excluded[in_exclude_file] = Reason.IN_EXCLUDE_FILE
    excluded[~rows.readable] = Reason.UNREADABLE
    return excluded


def require_scores(datasets: list[DatasetConfig], rows: CatalogRows) -> None:
    """Refuse a name that is neither a column of the catalog nor a score of any clip of its dataset.

    Args:
        datasets: The recipe's.
        rows: Live rows of their clips.

    Raises:
        UserError: With the name and the one nearest to it.
    """
    for one in datasets:
        named = filters.scores_named(one.filter) if one.filter else set()
        if not named | (template.names(one.caption) - set(NUMBERS)):
            continue
        its = rows.of_datasets([one.dataset_name])
        known = frozenset(name for name, score in rows.scores.items() if np.isfinite(score[its]).any())
        if one.filter:
            filter_expression.parse(one.filter, scores=known)
        template.parse(one.caption, known)


@dataclass(frozen=True)
class ExcludeList:
    """Clips by dataset and path.

    Attributes:
        lines: As the file has them, comments and empty lines left out, each once.
    """

    lines: tuple[str, ...] = ()

    def digest(self) -> str:
        """Digest of the lines; their order and comments do not count."""
        return digests.digest_json(sorted(self.lines))

    def rows(self, rows: CatalogRows) -> NDArray[np.bool_]:
        """True for the rows that a line names."""
        named = np.zeros(len(rows), dtype=np.bool_)
        named[list(self._found(rows).values())] = True
        return named

    def unmatched(self, rows: CatalogRows) -> list[str]:
        """Lines that name no row."""
        found = self._found(rows)
        return [line for line in self.lines if not any(clip in found for clip in _readings(line))]

    def _found(self, rows: CatalogRows) -> dict[str, int]:
        """Row of each clip that a line names; of a line's readings the first that is a clip counts."""
        known = _named(rows, {clip for line in self.lines for clip in _readings(line)})
        chosen = (next((clip for clip in _readings(line) if clip in known), None) for line in self.lines)
        return {clip: known[clip] for clip in chosen if clip is not None}


def _readings(line: str) -> list[str]:
    """List the clips that a line may name: a file's name may hold a #, and a comment may follow a path."""
    path, comment, _ = line.partition(" #")
    return [line, path.rstrip()] if comment else [line]


def _named(rows: CatalogRows, clips: Iterable[str]) -> dict[str, int]:
    """Rows by "dataset/path", for those of `clips` that are there."""
    clips = set(clips)
    found: dict[str, int] = {}
    # Paths are compared as they lie: joining millions of them with their datasets would copy them all.
    for dataset in set(rows.dataset.dictionary.to_pylist()):
        below = [clip.removeprefix(f"{dataset}/") for clip in clips if clip.startswith(f"{dataset}/")]
        if not below:
            continue
        inside = pc.is_in(rows.path, value_set=pa.array(below, type=rows.path.type))
        for row in np.flatnonzero(inside.to_numpy(zero_copy_only=False)).tolist():
            if rows.dataset[row].as_py() == dataset:
                found[f"{dataset}/{rows.path[row].as_py()}"] = row
    return found


def read_exclude_list(path: str | None) -> ExcludeList:
    """Read an exclude list; None is one without a line.

    Raises:
        UserError: It cannot be read, or is not UTF-8.
    """
    if path is None:
        return ExcludeList()
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"the list cannot be read ({error.strerror})",
            code="file-unreadable",
            field="exclude_file",
            value=path,
            remedy="check the path; relative ones start at the folder in which the command is given",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"not UTF-8: byte {error.start}",
            code="not-utf-8",
            field="exclude_file",
            value=path,
            remedy="save it as UTF-8",
        ) from error
    lines = (line.strip() for line in text.split("\n"))  # a name may hold what else ends a line
    return ExcludeList(tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#"))))
