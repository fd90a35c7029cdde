"""Know measures by their names: ours, those that are registered, and classes that an entry names."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from reelworks.catalog import measured_columns
from reelworks.catalog.lists import MEASURED
from reelworks.core import named_code
from reelworks.core.errors import UserError
from reelworks.core.named_code import NamedClasses
from reelworks.measures import duplicates, motion, picture, sound
from reelworks.measures.measure import Measure


def _missing(measure: type[Any]) -> list[str]:
    missing = [name for name in ("name", "version", "columns", "reads") if not hasattr(measure, name)]
    if hasattr(measure, "features"):
        missing += [name for name in ("feature_bytes", "compare") if not hasattr(measure, name)]
    elif not hasattr(measure, "values"):
        missing.append("a method `values`, or `features` and `compare`")
    return missing


_MEASURES = NamedClasses("measure", "my_measures.py:Faces", _missing, "docs/how-to/know-your-data.md")


def register(measure: type[Any]) -> type[Any]:
    """Make a measure's class known by its name, which must be free, as its columns must; returns the class.

    Clips are measured in other processes, which import the class from its module.
    """
    _MEASURES.require(measure)
    for column in measure.columns:
        taken = measured_columns.measure_of(column.name) not in (None, measure.name)
        if taken or column.name in MEASURED or not column.name.isidentifier() or keyword.iskeyword(column.name):
            raise UserError(
                f"the column {column.name!r} " + ("is taken" if taken or column.name in MEASURED else "is no name"),
                code="measure-column-invalid",
                field="measure",
                value=measure.__name__,
                remedy="choose a name of letters, digits and underscores that no other column has",
            )
    measured_columns.add(measure.name, measure.columns)
    return _MEASURES.register(measure)


def names() -> list[str]:
    """Return the names of all registered measures."""
    return list(_MEASURES.by_name)


def named(name: str, field: str) -> type[Any]:
    """Return the class of a measure by its name, or by an entry such as `my_measures:Faces` or `faces.py:Faces`.

    Raises:
        UserError: The name is unknown, or the entry does not lead to a measure.
    """
    return register(_MEASURES.load(name, field))


def all_named(given: Sequence[str], field: str) -> dict[str, type[Any]]:
    """Return the classes of several measures, each once, by an entry that names it in another process."""
    entries = {named(name, field): name for name in reversed(given)}  # the first of several that name the same
    return {_entry(name, measure): measure for measure, name in reversed(entries.items())}


@lru_cache(maxsize=64)
def instance(entry: str) -> Measure:
    """Return the measure of an entry, made once in a process."""
    measure: Measure = named(entry, "measure")()
    return measure


def _entry(name: str, measure: type[Any]) -> str:
    if ":" in name:
        return named_code.absolute(name)
    return name if measure.__module__.startswith("reelworks.") else f"{measure.__module__}:{measure.__qualname__}"


for _measure in (
    picture.Sharpness,
    picture.Exposure,
    picture.Noise,
    picture.Blockiness,
    picture.Colourfulness,
    picture.Borders,
    motion.Movement,
    motion.Cuts,
    duplicates.Duplicates,
    sound.SoundLevel,
):
    register(_measure)
