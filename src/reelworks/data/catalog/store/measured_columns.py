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


_SHARE = "0 to 1"
_PX = "px"
# By the name of the measure that gives them.
BUILT_IN: dict[str, tuple[Column, ...]] = {
    "sharpness": (
        Column("sharpness", _SHARE, "share of the fine differences that blurring the frame once more would remove"),
    ),
    "exposure": (
        Column("brightness", _SHARE, "mean luma; 1 is white"),
        Column("clipped_dark", _SHARE, "share of the pixels that are black"),
        Column("clipped_bright", _SHARE, "share of the pixels that are white"),
    ),
    "noise": (Column("noise", "levels of 255", "standard deviation of the noise in even areas"),),
    "blockiness": (
        Column("blockiness", "times", "how far differences at the borders of 8 × 8 px blocks exceed those beside them"),
    ),
    "colourfulness": (Column("colourfulness", "levels of 255", "spread and strength of the colours; 0 is grey"),),
    "borders": (
        Column("border_top", _PX, "rows of the black border above"),
        Column("border_bottom", _PX, "rows of the black border below"),
        Column("border_left", _PX, "columns of the black border to the left"),
        Column("border_right", _PX, "columns of the black border to the right"),
    ),
    "motion": (
        Column(
            "motion",
            "% of the height/s",
            "speed of the edges in the picture, those that stand still included; cuts do not count",
        ),
        Column("static", _SHARE, "share of the neighbouring frames between which nothing changes"),
    ),
    "cuts": (
        Column("cuts", "count", "hard cuts from one scene to another"),
        Column(
            "flashes", "count", "moments of at most 3 frames that are much brighter or darker than those around them"
        ),
    ),
    "duplicates": (
        Column(
            "duplicate_group",
            "number",
            "the same number for clips that show nearly the same; missing for a clip alone",
            is_label=True,
        ),
        Column("duplicate_rank", "rank", "0 for the best of a group and for a clip alone; then 1, 2, …", is_label=True),
    ),
    "sound": (
        Column("loudness", "dB", "level of the sound below full scale, as the root of its mean square"),
        Column("silent", _SHARE, "share of the time that is below -60 dB"),
        Column(
            "clipped_sound",
            _SHARE,
            "share of the samples within 0.5 dB of full scale, where sound lies that was cut off",
        ),
    ),
}
# By the name of the measure, which runs a network; those of classifiers are named by their labels.
OF_NETWORKS: dict[str, tuple[Column, ...]] = {
    "agreement": (
        Column("agreement", "-1 to 1", "cosine of the caption and the frames in CLIP or SigLIP", of_caption=True),
    ),
    "aesthetic": (Column("aesthetic", "about 1 to 10", "rating that people would give, by a head upon CLIP"),),
}
# By the name of the measure, which needs a package that is not installed by default.
WITH_EXTRAS: dict[str, tuple[Column, ...]] = {
    "text": (Column("text_area", _SHARE, "share of the picture that lines of text cover"),),
}
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
