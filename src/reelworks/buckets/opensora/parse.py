"""`[buckets.opensora]` as plain values: every value form, each of the three meanings of probabilities.

The forms, by resolution and frame count: `[p, batch_size]`, `[[p, p2], batch_size]`, `[0.0, "none"]`.
What p and p2 mean differs between releases, and nothing in a table tells which is meant:

* "opensora-1.2" (and 1.1): p2 is the chance to be kept at this length; then p that to stay at this
  resolution.
* "opensora-2.0": p2 is the chance to be *shortened*; then p that to stay at this resolution.
* "downgrade": p is the chance to be *moved* to a lower resolution; else p2 that to be shortened.

Here all become chances to stay. A clip that does not stay at a length tries the next shorter one, a clip
that does not stay at a resolution the next lower one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reelworks.buckets.opensora import ratios
from reelworks.buckets.opensora.ratios import Resolution
from reelworks.core.errors import UserError

Meaning = Literal["native", "opensora-1.2", "opensora-2.0", "downgrade"]
# A pair of probabilities (or of one) and batch size; `parse` says what is wrong with any other.
Value = list[Any]
Table = dict[str, dict[str, Value]]

NO_BATCH = "none"
MOST_CLIPS = 65_536  # of a micro-batch: copies that pad it take memory too
# A clip may be this much smaller than a resolution, in pixels; it is then enlarged.
PIXEL_SHARE = 0.8
FIELD = "buckets.opensora"
_FORMS = 'write [0.5, 8], [[0.5, 0.3], 8], or [0.0, "none"] for an entry that takes nothing'


@dataclass(frozen=True)
class Parsed:
    """One entry: a resolution at a length; `batch_size` 0 takes no clip."""

    resolution: Resolution
    num_frames: int
    keep_prob: float
    keep_length: float
    batch_size: int


@dataclass(frozen=True)
class Dialect:
    """A table that is read, and how clips walk through it.

    Attributes:
        entries: Resolutions by pixels, descending (equal ones as written), lengths descending.
        resolution_first: Whether a clip leaves the resolution before it is asked about its length.
        spare_frames: Frames that a clip must have beyond an entry's.
    """

    entries: tuple[Parsed, ...]
    resolution_first: bool
    spare_frames: int


def normal_form(value: Any) -> Any:
    """A table as TOML can hold it: text keys, lists, and "none" for None."""
    if isinstance(value, Mapping):
        return {str(key): normal_form(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [normal_form(inner) for inner in value]
    return NO_BATCH if value is None else value


def parse(table: Table, meaning: Meaning, *, drop_exact_length: bool) -> Dialect:
    """Read a table.

    Args:
        table: By resolution and number of frames.
        meaning: What the probabilities mean.
        drop_exact_length: Lose the clips of exactly an entry's length, as 1.1 and 1.2 do; 2.0 loses none.

    Raises:
        UserError: The meaning is not said; a name, length, probability or batch size is not possible.
    """
    if meaning == "native":
        raise UserError(
            "releases differ in what the probabilities of such a table mean",
            code="opensora-probability-ambiguous",
            field="buckets.probability",
            value=meaning,
            remedy='write "opensora-1.2" (1.1, 1.2: chances to stay), "opensora-2.0" (chance to stay, then '
            'to be shortened) or "downgrade" (chance to be moved to a lower resolution, else shortened)',
        )
    found = [(ratios.resolution(name, computed=meaning == "opensora-2.0"), table[name]) for name in table]
    found.sort(key=lambda pair: -pair[0].pixels)
    result: list[Parsed] = []
    for resolution, lengths in found:
        entries = [_entry(resolution, text, value, meaning) for text, value in lengths.items()]
        if not entries:
            where = f'"{resolution.name}"'
            raise _wrong(where, lengths, "it names no number of frames", "write { 51 = [1.0, 8] }")
        result += sorted(entries, key=lambda entry: -entry.num_frames)
    if not result:
        raise UserError(
            "the table is empty",
            code="opensora-table-empty",
            field=FIELD,
            remedy='add e.g. "256" = { 1 = [1.0, 24] }',
        )
    spare = 1 if drop_exact_length and meaning == "opensora-1.2" else 0
    return Dialect(tuple(result), meaning == "downgrade", spare)


def _entry(resolution: Resolution, text: str, value: Value, meaning: Meaning) -> Parsed:
    where = f'"{resolution.name}".{text}'
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise _wrong(where, text, "this is not a number of frames", "write a whole number, at least 1")
    if len(value) != 2:
        raise _wrong(where, value, f"{len(value)} values where there are two", _FORMS)
    chances, batch = value
    first, second = _chances(where, chances, pictures=int(text) == 1)
    stay = 1 - first if meaning == "downgrade" else first
    stay_long = 1.0 if second is None else second if meaning == "opensora-1.2" else 1 - second
    if batch != NO_BATCH and (
        isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MOST_CLIPS
    ):
        remedy = f'write a whole number from 1 to {MOST_CLIPS}, or "none"'
        raise _wrong(where, batch, "this is not a batch size", remedy)
    if batch == NO_BATCH and stay > 0:
        never = "1.0, to move all of them on" if meaning == "downgrade" else "0.0, so that none stays"
        raise _wrong(
            where, value, "clips stay here and there is no batch size", f"give one, or write {never}"
        )
    return Parsed(resolution, int(text), stay, stay_long, batch if isinstance(batch, int) else 0)


def _chances(where: str, chances: object, *, pictures: bool) -> tuple[float, float | None]:
    numbers: list[float] = []
    for p in chances if isinstance(chances, list) else [chances]:
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
            raise _wrong(where, p, "a probability lies in [0, 1]", _FORMS)
        numbers.append(float(p))
    if not isinstance(chances, list):
        return numbers[0], None
    if len(numbers) != 2:
        raise _wrong(where, chances, "a pair of probabilities has two", _FORMS)
    if pictures:
        raise _wrong(where, chances, "pictures have one length", "give one probability, as in [0.5, 8]")
    return numbers[0], numbers[1]


def _wrong(where: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(
        problem, code="opensora-table-invalid", field=f"{FIELD}.{where}", value=value, remedy=remedy
    )
