"""Annexes: packages that bring commands, observers and more, and that no module imports.

Those of the house are found by name. Others are installed packages with an entry point of the group `reelworks.annexes`:

    [project.entry-points."reelworks.annexes"]
    mine = "my_package.annex:ANNEX"
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from reelworks.core import named_code
from reelworks.core.errors import CommonError, UserError
from reelworks.core.log import logger

T = TypeVar("T")
GROUP = "reelworks.annexes"
_HOUSE = ("captions", "cluster", "doctor", "hub", "imports", "learning", "lora", "page", "quality")


@dataclass(frozen=True)
class AnnexCommand:
    """A command of the command line.

    Attributes:
        place: `module:name` of the function, or of the `App` of a group of commands.
        doing: What is said on the terminal while it works; None if it speaks by itself, or is a group.
    """

    name: str
    place: str
    doing: str | None = None


@dataclass(frozen=True)
class Annex:
    """An annex, by the places of all that it brings: `module:name`, which is imported when it is needed.

    Attributes:
        observers: Places of `training.observers.observer.ObserverKind`s, which every training has.
        routes: Places of FastAPI's `APIRouter`s, which the page serves below `/api`.
        sections: Places of functions that return a section of a run's report (`reports.page.Section`), or None.
        table: Place of the `Config` of its table in recipes, which is `[annex.NAME]` by the name of its entry point.
        measures: Place of the function that measures the clips of a catalog (`data.measures`).
        engines: Places of functions that connect to workers (`core.executors`), by the names that `--engine` takes.
        extra: Extra of this distribution that installs what it needs beside the program.
        packages: Names of these packages, as they are imported.
    """

    commands: tuple[AnnexCommand, ...] = ()
    observers: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    table: str | None = None
    measures: str | None = None
    engines: Mapping[str, str] = field(default_factory=dict)
    extra: str = ""
    packages: tuple[str, ...] = ()

    def require_packages(self) -> None:
        """Raise UserError if a package is missing that it needs."""
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            raise UserError(
                "this needs packages that are not installed",
                code="extra-missing",
                field=self.extra,
                value=missing,
                remedy=f'pip install "reelworks[{self.extra}]"',
            )


@functools.cache
def of_house() -> tuple[Annex, ...]:
    """Return the annexes that belong to this package."""
    return tuple(cast(Annex, named_code.load(f"reelworks.annexes.{name}.annex:ANNEX")) for name in _HOUSE)


def names() -> list[str]:
    """Return the names of the annexes of other installed packages, none of which is loaded."""
    return [point.name for point in _points()]


def from_outside(among: Container[str] | None = None) -> dict[str, Annex]:
    """Return the annexes of other installed packages, or those among some names, by name.

    Raises:
        UserError: One of them cannot be loaded.
    """
    return {point.name: _loaded(point) for point in _points() if among is None or point.name in among}


@functools.cache
def _points() -> list[importlib.metadata.EntryPoint]:
    """Look for entry points, which takes a tenth of a second."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)


def use(name: str, place: str, used: Callable[[Any], T] = lambda part: part) -> T:
    """Load a part of the annex of an entry point, or of one of the house (""), and use it.

    Raises:
        UserError: The package of the entry point, which it names, fails; or the part refuses something itself.
    """
    try:
        return used(named_code.load(place))
    except Exception as error:  # of whoever wrote it
        if not name or isinstance(error, CommonError):
            raise
        raise _broken(name, place, error) from error


def use_each(parts: str, used: Callable[[Any], T], *, leaves_out: bool = False) -> list[T]:
    """Use each of the parts, such as "sections", of all annexes, and return what comes of it.

    Raises:
        UserError: As from `use`; a warning, if what fails in other packages is left out.
    """
    results = [use("", place, used) for annex in of_house() for place in getattr(annex, parts)]
    for point in _points():
        try:
            results += [use(point.name, place, used) for place in getattr(_loaded(point), parts)]
        except UserError as error:
            if not leaves_out:
                raise
            logger.warning(f"{parts} of the annex {point.name} are left out: {error}")
    return results


def _loaded(point: importlib.metadata.EntryPoint) -> Annex:
    try:
        found = point.load()
    except Exception as error:  # of whoever wrote it
        found = error
    if isinstance(found, Annex):
        return found
    raise _broken(point.name, point.value, found)


def _broken(name: str, place: str, found: object) -> UserError:
    return UserError(
        f"the package of this annex cannot be used ({type(found).__name__}: {found})",
        code="annex-broken",
        field=f"entry point {name} of {GROUP}",
        value=place,
        remedy="update the package for this version of Reelworks, or uninstall it",
    )


def measuring() -> Any:
    """Return the function that measures the clips of a catalog."""
    return next(named_code.load(annex.measures) for annex in of_house() if annex.measures is not None)


def engines() -> dict[str, tuple[str, str]]:
    """Return the annex and the place of each engine by name; those of the house keep theirs."""
    every = (*from_outside().items(), *(("", annex) for annex in of_house()))
    return {engine: (name, at) for name, annex in every for engine, at in annex.engines.items()}
