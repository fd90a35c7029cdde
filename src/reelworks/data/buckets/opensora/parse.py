"""Parser of `[buckets.opensora]`, with its three value formats and the three meanings of its probabilities.

Values by resolution and frame count are `[p, batch_size]`, `[[p, p2], batch_size]` or `[0.0, "none"]`. The
meaning of p and p2 differs between releases, and cannot be inferred from a table:

* "opensora-1.2" (and 1.1): p2 is the probability to stay at this length, then p to stay at this resolution.
* "opensora-2.0": p2 is the probability to be *shortened*, then p to stay at this resolution.
* "downgrade": p is the probability to *move* to a lower resolution, else p2 to be shortened.

The parser converts all of them to probabilities to stay. A clip that does not stay at a length tries the next
shorter one, a clip that does not stay at a resolution tries the next lower one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from reelworks.core import units
from reelworks.core.errors import UserError
from reelworks.data.buckets.entry import Draws, Entry
from reelworks.data.buckets.opensora import ratios
from reelworks.data.buckets.opensora.ratios import Resolution

Meaning = Literal["native", "opensora-1.2", "opensora-2.0", "downgrade"]
# One or two probabilities, and a batch size; `parse` reports any other value.
Value = list[Any]
Table = dict[str, dict[str, Value]]

NO_BATCH = "none"
MOST_CLIPS = 65_536  # largest batch size, since padding copies take memory too
# Share of a resolution's pixels that a clip must have; smaller clips are enlarged.
PIXEL_SHARE = 0.8
FIELD = "buckets.opensora"
_FORMS = 'write [0.5, 8], [[0.5, 0.3], 8], or [0.0, "none"] for an entry that takes no clips'


def normal_form(value: Any) -> Any:
    """Return a table in the form that TOML can hold: text keys, lists, and "none" for None."""
    if isinstance(value, Mapping):
        return {str(key): normal_form(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [normal_form(inner) for inner in value]
    return NO_BATCH if value is None else value


def parse(
    table: Table, meaning: Meaning, *, drop_exact_length: bool, multiple: int = ratios.COMPUTED_MULTIPLE
) -> tuple[tuple[Entry, ...], Draws]:
    """Return the entries of a table by pixels, descending (equal ones in its order), and by length, and their draws.

    `drop_exact_length` refuses clips of exactly an entry's length, as 1.1 and 1.2 do. Sizes that 2.0 computes have sides
    that are multiples of `multiple`.
    """
    if meaning == "native":
        raise UserError(
            "the probabilities of a table of Open-Sora mean different things in different releases",
            code="opensora-probability-ambiguous",
            field="buckets.probability",
            value=meaning,
            remedy='write "opensora-1.2" (1.1, 1.2: to stay at the resolution, and at the length), "opensora-2.0" '
            '(to stay at it, and to be shortened) or "downgrade" (to move to a lower one, and else to be shortened)',
        )
    computed = meaning == "opensora-2.0"
    by_resolution = [(ratios.resolution(name, computed=computed, multiple=multiple), table[name]) for name in table]
    by_resolution.sort(key=lambda pair: -pair[0].pixels)
    spare = 1 if drop_exact_length and meaning == "opensora-1.2" else 0
    result: list[Entry] = []
    for resolution, lengths in by_resolution:
        if not lengths:
            where = f'"{resolution.name}"'
            raise _wrong(where, lengths, "the resolution has no frame counts", "add one, as in { 51 = [1.0, 8] }")
        entries = [_entry(resolution, text, value, meaning, spare) for text, value in lengths.items()]
        result += sorted(entries, key=lambda entry: -entry.num_frames)
    if not result:
        raise UserError(
            "the table is empty", code="opensora-table-empty", field=FIELD, remedy='add e.g. "256" = { 1 = [1.0, 24] }'
        )
    return tuple(result), Draws.RESOLUTION_FIRST if meaning == "downgrade" else Draws.LENGTH_FIRST


def _entry(resolution: Resolution, text: str, value: Value, meaning: Meaning, spare_frames: int) -> Entry:
    where = f'"{resolution.name}".{text}'
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise _wrong(where, text, "this is not a number of frames", "write a whole number, at least 1")
    if len(value) != 2:
        raise _wrong(where, value, f"{units.plural(len(value), 'value')} instead of two", _FORMS)
    chances, batch = value
    first, second = _chances(where, chances, pictures=int(text) == 1)
    stay = 1 - first if meaning == "downgrade" else first
    stay_long = 1.0 if second is None else second if meaning == "opensora-1.2" else 1 - second
    if batch != NO_BATCH and (isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MOST_CLIPS):
        remedy = f'write a whole number from 1 to {MOST_CLIPS}, or "none"'
        raise _wrong(where, batch, "this is not a batch size", remedy)
    if batch == NO_BATCH and stay > 0:
        never = "1.0, so that all move on" if meaning == "downgrade" else "0.0, so that none stays"
        remedy = f"give a batch size, or the probability {never}"
        raise _wrong(where, value, "clips stay here, but the entry has no batch size", remedy)
    return Entry(
        resolution.name,
        resolution.pixels,
        int(text),
        batch if isinstance(batch, int) else 0,
        stay,
        named=resolution,
        keep_length=stay_long,
        spare_frames=spare_frames,
        pixel_share=PIXEL_SHARE,
    )


def _chances(where: str, chances: object, *, pictures: bool) -> tuple[float, float | None]:
    numbers: list[float] = []
    for p in chances if isinstance(chances, list) else [chances]:
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
            raise _wrong(where, p, "a probability lies in [0, 1]", _FORMS)
        numbers.append(float(p))
    if not isinstance(chances, list):
        return numbers[0], None
    if len(numbers) != 2:
        raise _wrong(where, chances, "a list of probabilities must have two", _FORMS)
    if pictures:
        raise _wrong(where, chances, "pictures have one length only", "give one probability, as in [0.5, 8]")
    return numbers[0], numbers[1]


def _wrong(where: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(problem, code="opensora-table-invalid", field=f"{FIELD}.{where}", value=value, remedy=remedy)
