"""Files of other trainers' settings, read as plain values and never run: TOML, JSON, YAML, `.env` and command lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from reelworks.core import toml, user_files
from reelworks.core.errors import UserError

_MOST_VALUES = 100_000  # of one file; aliases of YAML can stand for more than any memory
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))|%(\w+)%")
_WINDOWS_ASSIGNMENT = re.compile(r"\s*(?:set\s+\"?(\w+)|\$(?:env:)?(\w+)\s*)=\s*(.*)", re.IGNORECASE)
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\w\\\w|\.\\\w")
_ARRAY = re.compile(r"\$(?:\{\w+\[[@*]\]\}|[@*])")
_ENDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "2>&1"})


def existing(name: str | Path) -> Path | None:
    """Return the file or folder that a setting names, if it is there; any text may be such a name, also one of no path."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


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
            raise UserError(
                f"the config cannot be read ({error.strerror})",
                code="file-unreadable",
                field="FILE",
                value=str(self.path),
                remedy="check the path",
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(
                "the config is no text in UTF-8",
                code="config-unreadable",
                field="FILE",
                value=str(self.path),
                remedy="save it as UTF-8",
            ) from error

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
            raise UserError(
                f"this is no {kind}: {' '.join(str(error).split())}",
                code="config-unreadable",
                field="FILE",
                value=str(self.path),
                remedy="correct the file, or give the right one",
            ) from error
        return values if isinstance(values, dict) else None

    @cached_property
    def commands(self) -> list[list[str]]:
        """The commands of a shell script, each as its words, with the values of variables that the script sets."""
        return [] if self.path.is_dir() else list(_commands(self.text))

    def beside(self, name: str) -> ConfigFile:
        """Return the file that a path in this one means, or one of that name beside it if that is missing."""
        for named in (name, self.path.parent / name, self.path.parent / re.split(r"[/\\]", name)[-1]):
            if (path := existing(named)) is not None and path.is_file():
                return ConfigFile(path)
        raise UserError(
            "the config names another file, which is not there",
            code="file-unreadable",
            field="FILE",
            value=name,
            remedy=f"put it beside {self.path.name}",
        )


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

_PARSERS = {".toml": toml.parse, ".json": user_files.parse_json, ".yaml": _load_yaml, ".yml": _load_yaml}


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables and lists of tables as values by dotted names: "datasets.0.folder".

    Lists of plain values, and empty tables, are values. Raises `UserError` for more than any person writes.
    """
    result: dict[str, Any] = {}
    for name, value in _leaves(values, prefix):
        result[name] = value
        if len(result) > _MOST_VALUES:
            raise UserError(
                f"the config has more than {_MOST_VALUES:,} values",
                code="config-unreadable",
                field="FILE",
                remedy="give a config of a trainer",
            )
    return result


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        items = [(str(_encodable(str(key))), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        items = [(str(number), inner) for number, inner in enumerate(value)]
    else:
        yield name, _encodable(value)
        return
    for key, inner in items:
        yield from _leaves(inner, f"{name}.{key}" if name else key)


def _encodable(value: Any) -> Any:
    """Return texts, also in lists, without halves of characters, which JSON can spell and no file can hold."""
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
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
        return json.loads(value.lower() if value.lower() in ("true", "false") else value)
    except ValueError:
        try:
            return float(value) if re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", value) else value
        except ValueError:
            return value


def parse_env(text: str) -> dict[str, str]:
    """Return the variables that a shell script of assignments sets."""
    variables: dict[str, str] = {}
    for words in _split(text):
        for word in words:
            if (match := _ASSIGNMENT.fullmatch(word)) is not None:
                variables[match[1]] = _substituted(match[2], variables)
    return variables


def _commands(text: str) -> Iterator[list[str]]:
    variables: dict[str, str] = {}
    for words in _split(text):
        assigned = [_ASSIGNMENT.fullmatch(word) for word in words]
        if words and all(assigned):
            variables |= {match[1]: _substituted(match[2], variables) for match in assigned if match is not None}
            continue
        part: list[str] = []
        for word in words:
            if word in _ENDS:
                if part:
                    yield part
                part = []
            else:
                part += _expanded(word, variables)
        if part:
            yield part


def _split(text: str) -> Iterator[list[str]]:
    """Split a script into lines of words; of Windows, too, where ^ and ` continue a line.

    A line that begins with an option continues the one before, since the mark at its end is easily lost.
    """
    joined = re.sub(r"[ \t]*[\\^`][ \t]*\r?\n", " ", text)
    joined = re.sub(r"[ \t]*\r?\n[ \t]*(?=--[A-Za-z])", " ", joined)
    for line in joined.splitlines():
        if (match := _WINDOWS_ASSIGNMENT.fullmatch(line)) is not None:
            value = match[3].strip()
            yield [f"{match[1] or match[2]}={value.partition('#')[0].strip() if match[2] else value}".replace('"', "")]
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
        lexer.whitespace_split, lexer.commenters = True, "#"
        if _WINDOWS_PATH.search(line):
            lexer.escape = ""
        try:
            words = list(lexer)
        except ValueError:  # a quote that is not closed: of a language that is no shell
            continue
        if words:
            yield words


def _expanded(word: str, variables: Mapping[str, str]) -> list[str]:
    """Return a word with variables replaced; of one that is nothing but a variable with options, its words."""
    if _ARRAY.fullmatch(word):  # arguments that only a run of the script adds
        return []
    value = _substituted(word, variables)
    if value.startswith("-") and _VARIABLE.fullmatch(word):
        try:
            return shlex.split(value)
        except ValueError:
            return [value]
    return [value]


def _substituted(word: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2] or found[3], found[0]), word)
