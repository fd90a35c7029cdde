"""Files of other trainers' settings, read as plain values and never run: TOML, JSON, YAML, `.env` and command lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from reelworks.annexes.imports import batch, powershell, shell
from reelworks.annexes.imports.script import Command, Script
from reelworks.core import toml, user_files
from reelworks.core.errors import UserError

_MOST_VALUES = 100_000  # and names of one file; aliases of YAML can stand for more than any memory
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\w\\\w|\.\\\w")
_BATCH = re.compile(r"(?m)\^[ \t]*$|^@?set\s+\"?\w+=|%\w+%", re.IGNORECASE)
_POWERSHELL = re.compile(r"(?m)`[ \t]*$|^\s*\$[\w:]+\s*\+?=")


class ConfigError(UserError):
    """A file that was given is not what a trainer reads; it is told with the files that it is about."""

    def __init__(self, problem: str, *files: object, code: str = "config-unreadable", remedy: str) -> None:
        super().__init__(problem, code=code, field="FILE", value=", ".join(map(str, files)) or None, remedy=remedy)


class ConfigFile:
    """A file, or a command line that was given as text, of which nobody knows yet which trainer's it is."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self._text = text

    @cached_property
    def text(self) -> str:
        """The whole file; raises `UserError` if it cannot be read, or is no text."""
        if self._text is not None:
            return self._text
        try:
            return user_files.read_text(self.path, user_files.SETTINGS, encoding="utf-8-sig")
        except OSError as error:
            problem = f"the config cannot be read ({error.strerror})"
            raise ConfigError(problem, self.path, code="file-unreadable", remedy="check the path") from error
        except UnicodeDecodeError as error:
            raise ConfigError("the config is no text in UTF-8", self.path, remedy="save it as UTF-8") from error

    @cached_property
    def values(self) -> dict[str, Any] | None:
        """The values of a file of TOML, JSON or YAML, by its ending; None for others, and if it is no table.

        Raises:
            UserError: It is not what its ending says.
        """
        parse = _PARSERS.get(self.path.suffix.lower())
        if parse is None:
            return None
        text = self.text
        try:
            values = parse(text)
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            kind = self.path.suffix[1:].upper().replace("YML", "YAML")
            remedy = getattr(error, "remedy", None) or _remedy(kind, text)
            raise ConfigError(f"this is no {kind}: {' '.join(str(error).split())}", self.path, remedy=remedy) from error
        return values if isinstance(values, dict) else None

    @cached_property
    def script(self) -> Script:
        """The commands of a script, or those of a text such as a command line or a page of documentation."""
        if self.path.is_dir():
            return Script()
        suffix, text = self.path.suffix.lower(), self.text
        if suffix in (".bat", ".cmd") or (suffix not in _SHELLS and _BATCH.search(text)):
            return batch.follow(text)
        if suffix == ".ps1" or (suffix not in _SHELLS and _POWERSHELL.search(text)):
            return powershell.follow(text)
        if suffix not in _SHELLS:  # a line that begins with an option continues the one before: its mark is easily lost
            text = re.sub(r"[ \t]*\\?[ \t]*\r?\n[ \t]*(?=--[A-Za-z])", " ", text)
            text = "\n".join(
                re.sub(r"\\(?!$)", r"\\\\", one) if _WINDOWS_PATH.search(one) else one for one in text.splitlines()
            )
        return shell.follow(text, self._sourced, is_script=suffix in _SHELLS)

    def _sourced(self, name: str) -> str | None:
        try:
            return self._named(name).text
        except UserError:
            return None

    @property
    def commands(self) -> list[Command]:
        """The commands of a script."""
        return self.script.commands

    def beside(self, name: str) -> ConfigFile:
        """Return the file that a path in this one means, or one of that name beside it if that is missing.

        One that a script writes itself is what the script says.
        """
        if self.path.suffix.lower() not in _PARSERS and (text := self.script.files.get(name)) is not None:
            return ConfigFile(Path(name), text)
        return self._named(name)

    def _named(self, name: str) -> ConfigFile:
        for named in (name, self.path.parent / name, self.path.parent / re.split(r"[/\\]", name)[-1]):
            if (path := user_files.existing(named)) is not None and path.is_file():
                return ConfigFile(path)
        remedy = f"put it beside {self.path.name}"
        raise ConfigError(
            "the config names another file, which is not there", name, code="file-unreadable", remedy=remedy
        )


def _remedy(kind: str, text: str) -> str:
    """Return what to do about a file that is not what its ending says, by what is easily wrong in it."""
    if kind == "JSON" and re.search(r"(?m)^\s*(//|#|/\*)|[,{}\[\]]\s*(//|#)", text):
        return "remove the comments, which JSON does not have"
    if kind == "JSON" and re.search(r",\s*[}\]]", text):
        return "remove the comma before a closing bracket"
    return "correct the file, or give the right one"


def _load_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_YamlLoader)


class _YamlLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Makes numbers of `1e-4`, as every trainer's loader or user means it, and no dates."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)

_SHELLS = (".sh", ".bash", ".env")
_PARSERS = {".toml": toml.parse, ".json": user_files.parse_json, ".yaml": _load_yaml, ".yml": _load_yaml}


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables and lists of tables as values by dotted names: "datasets.0.folder".

    Lists of plain values, and empty tables, are values. Raises `UserError` for more than any person writes.
    """
    left = iter(range(_MOST_VALUES))
    try:
        return dict(_leaves(values, prefix, left))
    except RuntimeError:  # none is left, or it is a RecursionError
        problem = f"the config has more than {_MOST_VALUES:,} values, or is nested too deeply"
        raise ConfigError(problem, remedy="give a config of a trainer") from None


def _leaves(value: Any, name: str, left: Iterator[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        items = [(str(_encodable(str(key), left)), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        items = [(str(number), inner) for number, inner in enumerate(value)]
    else:
        yield name, _encodable(value, left)
        return
    for key, inner in items:
        yield from _leaves(inner, f"{name}.{key}" if name else key, left)


def _encodable(value: Any, left: Iterator[int]) -> Any:
    """Return texts, also in lists, without halves of characters, which JSON can spell and no file can hold."""
    next(left)
    if isinstance(value, list | tuple):
        return type(value)(_encodable(inner, left) for inner in value)
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def parse_arguments(words: list[str]) -> dict[str, Any]:
    """Return the options of a command, by their names without hyphens at the start, with "-" as "_".

    An option without a value is True; one that is given with several words, or several times, is a list. Values are texts.
    """
    options: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, given, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = value if given else True
        elif name is not None:
            known = options[name]
            options[name] = word if known is True else [*([known] if isinstance(known, str) else known), word]
    return options


def plain(value: Any) -> Any:
    """Return a text of a command line or `.env` file as the number or switch that it is; others as they are."""
    if not isinstance(value, str):
        return value
    try:
        return user_files.parse_json(value.lower() if value.lower() in ("true", "false") else value)
    except ValueError:
        return float(value) if re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", value) else value
