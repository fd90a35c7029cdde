"""Know classes of a kind by their names, and those that an entry names in code: `faces.py:Faces`, or `my_package.measures:Faces`.

Whether the code may run is asked before, in `core.trust`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reelworks.core.errors import UserError, nearest

Class = type[Any]
_WITH_WEIGHTS = re.compile(r"(.+?:[^\W\d]\w*)=.*", re.DOTALL)


@dataclass(frozen=True)
class NamedClasses:
    """Classes of a kind, such as metrics, by the name that each has.

    Attributes:
        kind: What one is called in messages.
        example: An entry that names a class of a user's.
        missing: Returns what a class lacks.
        page: Page of the documentation on what a class has.
    """

    kind: str
    example: str
    missing: Callable[[Any], list[str]]
    page: str
    by_name: dict[str, Class] = field(default_factory=dict)

    def register(self, cls: Class) -> Class:
        """Make a class known by its name, and return it; raises as `require` does."""
        self.require(cls)
        self.by_name[cls.name] = cls
        return cls

    def require(self, cls: Class) -> None:
        """Raise a UserError if a class is incomplete, or another one has its name."""
        self._require_complete(cls, getattr(cls, "__name__", str(cls)))
        if self.by_name.get(cls.name, cls) is not cls:
            raise UserError(
                f"two {self.kind}s have the name {cls.name!r}",
                code="class-name-taken",
                field=self.kind,
                value=cls.__name__,
                remedy="choose another name",
            )

    def load(self, name: str, field: str) -> Class:
        """Return the class that a name or an entry leads to; one that an entry leads to is not registered yet.

        Raises:
            UserError: The name is unknown, or the entry does not lead to such a class.
        """
        if name in self.by_name:
            return self.by_name[name]
        if ":" not in name:
            raise UserError(
                f"there is no such {self.kind}",
                code="class-unknown",
                field=field,
                value=name,
                remedy=f"{nearest(name, self.by_name)}; or name a class of yours, as in {self.example}",
            )
        try:
            cls: Class = load(name)
        except Exception as error:  # the user's code may raise anything
            raise UserError(
                f"it cannot be imported ({type(error).__name__}: {error})",
                code="class-not-importable",
                field=field,
                value=name,
                remedy="name a file or an installed module, a colon, and a class in it",
            ) from error
        self._require_complete(cls, name)
        return cls

    def _require_complete(self, cls: Any, name: str) -> None:
        missing = self.missing(cls) if isinstance(cls, type) else ["all that a class has"]
        if missing:
            raise UserError(
                f"it lacks {', '.join(missing)}",
                code="class-incomplete",
                field=self.kind,
                value=name,
                remedy=f"see {self.page} for what the class of a {self.kind} has",
            )


def load(entry: str) -> Any:
    """Return the attribute of a file or module that an entry names; a file is run once. May raise anything."""
    place, _, attribute = entry.rpartition(":")
    module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    return getattr(module, attribute)


def without_weights(entry: str) -> str:
    """Return the entry of a class that stands before "=" and a folder of weights; `=` and `:` may be in either path."""
    found = _WITH_WEIGHTS.fullmatch(entry)
    return found[1] if found else entry


def absolute(entry: str) -> str:
    """Return an entry that names the same in a process with another working directory."""
    place, colon, attribute = entry.rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if colon and place.endswith(".py") else entry


def _module_of_file(path: Path) -> Any:
    known = f"reelworks_code_{path.resolve().as_posix()}"
    if known in sys.modules:  # the same file has the same classes
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[known] = module
    return module
