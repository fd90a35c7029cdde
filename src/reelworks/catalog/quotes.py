"""Quotes of a CSV that are opened and not closed.

Such a quote makes one cell of all rows up to the next quote or the end of the file, and Arrow reads it without a word:
those rows would vanish into a caption. A cell of several lines is rare and may be meant, so only then Python's reader,
which is strict but slower, goes through the file.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def hold_lines(table: Any) -> bool:
    """Tell whether a cell of a table holds more than one line."""
    texts = (c for c in table.columns if pa.types.is_string(c.type) or pa.types.is_large_string(c.type))
    return any(pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py() for column in texts)


def check(file: Path) -> None:
    """Go through the quotes of a CSV.

    Raises:
        ValueError: One is not closed, or text stands behind one that is; says in which line the row begins.
    """
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        line = 1
        try:
            for _ in rows:
                line = rows.line_num + 1
        except csv.Error as error:
            raise ValueError(
                f"the row that begins in line {line} has a quote that is not closed ({error})"
            ) from error
