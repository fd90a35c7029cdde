"""A recipe under construction, in which each value that comes from another trainer's config has its name there beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reelworks.annexes.imports.request import ImportRequest
from reelworks.core import toml, toml_none
from reelworks.core.errors import shown
from reelworks.training.recipe import toml_writer
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.recipe.toml_writer import Line

_LONGEST = 60  # characters of a value in a comment
_LISTS = ("dataset", "bucket")


class Clip(NamedTuple):
    """A picture or video that can be read, as a scan finds it."""

    dataset: int  # number of its dataset in the recipe
    path: str  # below the folder of the dataset
    width: int
    height: int
    num_frames: int  # 1 of a picture
    fps: float  # 0 of a picture
    is_image: bool
    caption: str | None


@dataclass
class FormerSettings:
    """Settings of a trainer by their dotted names, with elements of lists by number, and what could not be read."""

    values: dict[str, Any]
    unread: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value; the default if it is missing."""
        return self.values.get(name, default)

    def below(self, name: str) -> dict[str, Any]:
        """Return the values whose names begin with this one and a dot, by the rest of their names."""
        return {key[len(name) + 1 :]: value for key, value in self.values.items() if key.startswith(f"{name}.")}

    def each(self, name: str, key: str, default: Any = None) -> list[Any]:
        """Return the values of a setting that each element of a list has."""
        return [self.get(f"{name}.{number}.{key}", default) for number in range(self.count(name))]

    def count(self, name: str) -> int:
        """Return the number of elements of a list."""
        numbers = (key[len(name) + 1 :].partition(".")[0] for key in self.values if key.startswith(f"{name}."))
        return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


class ImportDraft:
    """A recipe that rules fill, key by key.

    Attributes:
        settings: What the recipe is made of.
        request: What was asked for beside the settings.
        key: Name of the setting that is being converted, in the trainer's own words.
        numbers: Numbers in that name, such as that of the dataset.
        is_default: The setting is not in the config, and has the trainer's default.
        clips: The clips of all datasets, if their folders were scanned.
        epoch_steps: Steps of an epoch here, if they were planned.
        processes: Number of processes there, of which each has micro-batches of its own, where steps are counted.
        warmup: A warm-up that is a share of all steps, and the setting that it comes from.
        took_data: The folders of `--data` are in the recipe already.
        replaced: What a setting of another dataset had set, in a key that a recipe has once; "" if nothing is lost.
    """

    def __init__(
        self,
        settings: FormerSettings,
        request: ImportRequest,
        clips: Sequence[Clip] = (),
        epoch_steps: int | None = None,
    ) -> None:
        self.settings, self.request = settings, request
        self.clips, self.epoch_steps = clips, epoch_steps
        self.warmup: tuple[str, float] | None = None
        self.processes = 1
        self.key, self.is_default = "", False
        self.took_data, self.replaced = False, ""
        self.numbers: tuple[int, ...] = ()
        self._lines: dict[tuple[str, int, str], Line] = {}
        self._origins: dict[tuple[str, int, str], str] = {}
        self.add([Line("", "version", 1)])

    def begin(self, key: str, *, is_default: bool = False) -> None:
        """Say which setting the next values come from."""
        self.key, self.is_default, self.replaced = key, is_default, ""
        self.numbers = tuple(int(part) for part in key.split(".") if part.isdecimal())

    def numbered(self, key: str) -> str:
        """Return a key with the first number of the setting's own name in place of the `*` of "dataset.*"."""
        return key.replace("*", str(self.numbers[0]), 1) if key.startswith("dataset.*") else key

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines that come from no setting; those of a key that is there already replace it."""
        for line in lines:
            self._lines[line.table, line.number, line.key] = line

    def set(self, key: str, value: Any, why: str | None = None) -> str:
        """Set a dotted key, such as "dataset.0.path" or "dataset.*.path" of the setting's own number, and return the assignment as text; None is written as "none".

        The comment beside it is the name of the setting that is being converted, with its value if that is another one,
        or else `why`.
        """
        key = self.numbered(key)
        value = toml_none.WORD if value is None else list(value) if isinstance(value, tuple) else value
        place, text = _place(key), toml_writer.literal(value)  # raises TypeError for what TOML cannot hold
        reason = _printable(self._source(value) if why is None else why)
        former, origin = self._lines.get(place), self._origins.get(place, "")
        is_of_another = origin != self.key and without_numbers(origin) == without_numbers(self.key) != self.key
        is_of_another &= place[0].strip("[]") not in _LISTS
        is_more = former is not None and isinstance(value, list) and value[:-1] == former.value
        if former is not None and former.value != value and is_of_another and not is_more:
            self.replaced = f"{key} = {toml_writer.literal(former.value)} of {origin}"
        self._lines[place] = Line(place[0], place[2], value, reason, place[1])
        self._origins[place] = self.key
        return f"{key} = {text}"

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key; the default if it was not set."""
        line = self._lines.get(_place(self.numbered(key)))
        return default if line is None else line.value

    def beside(self, key: str) -> Any:
        """Return another setting, with the first number of the own name in place of the `*` in its name."""
        number = next((part for part in self.key.split(".") if part.isdecimal()), "")
        return self.settings.get(key.replace("*", number, 1))

    def assignment(self, key: str) -> str:
        """Return the assignment of a dotted key as text."""
        return f"{key} = {toml_writer.literal(self.get(key))}"

    @property
    def is_flow(self) -> bool:
        """Whether the model is trained with rectified flow."""
        return bool(self.get("objective.name", "rectified-flow") == "rectified-flow")

    def remove(self, key: str) -> None:
        """Take a key out again."""
        self._lines.pop(_place(key), None)

    def count(self, table: str) -> int:
        """Return the number of `[[dataset]]` or `[[bucket]]` tables."""
        return len({number for header, number, _ in self._lines if header == f"[[{table}]]"})

    def text(self, title: str) -> str:
        """Return the recipe as TOML."""
        order = ["", *Recipe.model_fields]
        names = {header: header.strip("[]") for header, _, _ in self._lines}
        lines = sorted(
            self._lines.values(),
            key=lambda line: (order.index(names[line.table].partition(".")[0]), line.number, names[line.table]),
        )
        return toml_writer.write(_printable(title), lines)

    def values(self) -> dict[str, Any]:
        """Return the recipe as plain values."""
        return {"output": f"runs/{self.request.path.stem}", **toml.parse(self.text(""))}

    def source_of(self, key: str) -> str:
        """Return the setting that a dotted key was imported from, as the comment beside it has it; "" if there is none."""
        line = self._lines.get(_place(key))
        return "" if line is None else line.why

    def origin_of(self, key: str) -> str:
        """Return the name of the setting that a dotted key was set for; "" if there is none."""
        return self._origins.get(_place(key), "")

    def assigned(self) -> list[str]:
        """Return the dotted keys that were set."""
        numbered = {f"[[{name}]]": name for name in _LISTS}
        return [
            f"{numbered[table]}.{number}.{key}" if table in numbered else f"{table.strip('[]')}.{key}".lstrip(".")
            for table, number, key in self._lines
        ]

    def _source(self, value: Any) -> str:
        own = self.settings.get(self.key)
        if self.is_default or own is None:
            return f"default of {self.key}" if self.is_default else self.key
        text = own if isinstance(own, str) else shown(own)
        text = " ".join(text.split())
        return self.key if own == value else f"{self.key} = {text[:_LONGEST]}{'…' * (len(text) > _LONGEST)}"


def without_numbers(key: str) -> str:
    """Return a setting's name with `*` for numbers."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", key)


def _printable(text: str) -> str:
    """Return a text that can stand in a comment, whatever a stranger wrote."""
    return "".join(character if character.isprintable() else " " for character in text)


def _place(key: str) -> tuple[str, int, str]:
    """Return the header of a dotted key's table, its number, and the key in it."""
    *parents, last = key.split(".")
    if len(parents) > 1 and parents[0] in _LISTS:
        return f"[[{parents[0]}]]", int(parents[1]), last
    return f"[{'.'.join(parents)}]" if parents else "", 0, last
