"""Names, units and meanings of the columns that measures of clips give a catalog.

The columns of our own measures are listed here, since filters and captions are checked by their names before anything is
measured; the classes that measure them are in `measures`. A class from outside adds its columns when it is registered.
They lie in the catalog as scores do: a filter, a caption or a histogram makes no difference between the two.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from reelworks.core import toml
from reelworks.core.context_variables import setting


class Column(NamedTuple):
    """A column of numbers that a measure gives: its name in filters, its unit, and its meaning in half a sentence.

    `is_label` tells that numbers only say which clips of a catalog belong together, or how these rank, so that limits on
    them mean nothing; `of_caption` that another caption has another value.
    """

    name: str
    unit: str
    meaning: str
    is_label: bool = False
    of_caption: bool = False


# By the name of the measure that gives them: our own, those that run a network, of which classifiers name theirs by their
# labels, and those that need a package which is not installed by default.
BUILT_IN, OF_NETWORKS, WITH_EXTRAS = (
    {measure: tuple(Column(**column) for column in columns) for measure, columns in measures.items()}
    for measures in toml.beside(__file__, "measured_columns.toml").values()
)
_COLUMNS = {
    column.name: (measure, column)
    for measures in (BUILT_IN, OF_NETWORKS, WITH_EXTRAS)
    for measure, columns in measures.items()
    for column in columns
}
OURS = frozenset(_COLUMNS)
_any_name: ContextVar[bool] = ContextVar("any_name", default=False)
_catalog: ContextVar[Path | None] = ContextVar("catalog", default=None)


def add(measure: str, columns: Sequence[Column]) -> None:
    """Make the columns of a measure known."""
    _COLUMNS.update({column.name: (measure, column) for column in columns})


def measure_of(name: str) -> str | None:
    """Return the measure that gives a column; None for a name that no known measure has."""
    return _COLUMNS[name][0] if name in _COLUMNS else None


def entry_of(name: str) -> str:
    """Return what names the measure of a column on the command line, with `FOLDER` for weights."""
    measure = measure_of(name) or name
    return f"{measure}=FOLDER" if measure in {*OF_NETWORKS, "classes", "objects"} else measure


def find(name: str) -> Column | None:
    """Return a column by its name; None for a name that no known measure has."""
    return _COLUMNS[name][1] if name in _COLUMNS else None


def is_label(name: str) -> bool:
    """Tell whether a column's numbers only say which clips belong together, or how these rank, so that limits mean nothing."""
    return name in _COLUMNS and _COLUMNS[name][1].is_label


def names() -> frozenset[str]:
    """Return the names of the columns of all known measures."""
    return frozenset(_COLUMNS)


def names_in_filters(named: Set[str]) -> frozenset[str] | None:
    """Return the names that a filter or caption of a folder may use; None while any may be one, see `any_name`.

    The catalog, see `in_catalog`, is read only if a name that the text has is that of no measure.
    """
    if _any_name.get():
        return None
    catalog = _catalog.get()
    if catalog is None or named <= names():
        return names()
    import pyarrow.parquet as pq  # most recipes are read without it

    from reelworks.data.catalog.store.schema import SCORE

    try:
        columns = [name for file in catalog.glob("*.parquet") for name in pq.read_schema(file).names]
    except (OSError, ValueError):
        return None  # the catalog cannot be read, which is told later
    return names() | {name.removeprefix(SCORE) for name in columns if name.startswith(SCORE)}


def any_name(allowed: bool = True) -> AbstractContextManager[None]:
    """Let any name be a column, or leave that as it is.

    A recipe that names code measures what is known only once that code may run, and that of a run was checked already.
    """
    return setting(_any_name, allowed or _any_name.get())


def in_catalog(folder: Path) -> AbstractContextManager[None]:
    """Let the columns of a catalog be named, such as those of a class outside that was applied to it; it need not exist."""
    return setting(_catalog, folder)
