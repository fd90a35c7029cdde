"""Take limits on single columns out of a filter, and put others into it: `aes >= 4.5 and height <= 1080`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reelworks.data.catalog.filter_expression import constant
from reelworks.data.catalog.query.filter_failures import Limit, joined, parts_of, text_of


@dataclass(frozen=True)
class ColumnRange:
    """Limits of a column, None for none; `text` is the part of a filter that they were read from."""

    least: float | None = None
    most: float | None = None
    text: str = ""

    def expression(self, name: str) -> str:
        """Return the limits as a filter of a column; "" if there is none."""
        least = [] if self.least is None else [f"{name} >= {self.least:.12g}"]
        return " and ".join([*least, *([] if self.most is None else [f"{name} <= {self.most:.12g}"])])


def divide(text: str | None) -> tuple[dict[str, ColumnRange], str | None]:
    """Return the limits of a filter by column, and its other parts as a filter, None if there are none.

    A limit that the value itself does not meet, as in `aes > 4.5`, is one, too.
    """
    ranges: dict[str, ColumnRange] = {}
    others: list[ast.expr] = []
    for part in parts_of(text) if text else ():
        limit = Limit.of_part(part)
        value = None if limit is None else constant(limit.limit)
        if limit is None or not isinstance(limit.measured, ast.Name) or not isinstance(value, float):
            others.append(part)
            continue
        name = limit.measured.id
        former = ranges.get(name, ColumnRange())
        side = "least" if limit.op in (ast.Gt, ast.GtE) else "most"
        tightest = {"least": max, "most": min}[side]
        bound = value if getattr(former, side) is None else tightest(value, getattr(former, side))
        words = " and ".join(filter(None, [former.text, ast.unparse(part)]))
        ranges[name] = replace(former, **{side: bound}, text=words)
    return ranges, text_of(joined(others)) if others else None


def with_ranges(text: str | None, ranges: Mapping[str, ColumnRange]) -> str | None:
    """Return a filter with other limits on some columns; what else it asks for stays. None if it asks for nothing."""
    former, rest = divide(text)
    is_or = rest is not None and isinstance(ast.parse(rest, mode="eval").body, ast.BoolOp) and len(parts_of(rest)) == 1
    kept = [] if rest is None else [f"({rest})" if is_or else rest]
    for name in dict.fromkeys([*former, *ranges]):
        was, now = former.get(name, ColumnRange()), ranges.get(name, former.get(name, ColumnRange()))
        same = (was.least, was.most) == (now.least, now.most)
        kept.append(was.text if same else now.expression(name))
    return " and ".join(filter(None, kept)) or None
