"""Change values in the text of a TOML file, so that the comments and the order of everything else stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import tomli_w

from reelworks.core import toml
from reelworks.recipe.toml_writer import key_text, literal

Path = tuple[str | int, ...]
_WIDTH = 110  # a longer list is written with a line for each element
_GONE = object()


def rewrite(text: str, values: dict[str, Any]) -> str:
    r"""Return the text of a TOML file with other values.

    A text that is written in an uncommon way, so that the changes cannot be put into it, is written anew, without
    comments.

    Examples:
        >>> rewrite("a = 1  # why\\n[b]\\nc = 2\\n", {"a": 3, "b": {"c": 2}})
        'a = 3  # why\\n[b]\\nc = 2\\n'
    """
    with suppress(toml.Invalid, LookupError, ValueError):
        lines = text.splitlines()
        for path, value in _changes(toml.parse(text), values, ()):
            _remove(lines, path, values) if value is _GONE else _set(lines, path, value, values)
        changed = "\n".join(lines).rstrip("\n") + "\n"
        if _alike(toml.parse(changed), values):
            return changed
    return tomli_w.dumps(values)


def _alike(a: Any, b: Any) -> bool:
    """Return whether values are equal and of the same type, unlike 1 and true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    return type(a) is type(b) and bool(a == b)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _changes(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield what is to be set or removed, in an order in which one can be done after the other."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (((*path, key), _GONE) for key in old if key not in new)
        for key, value in new.items():
            if key in old:
                yield from _changes(old[key], value, (*path, key))
            else:
                yield (*path, key), value
    elif _is_tables(old) and _is_tables(new):
        yield from (((*path, i), _GONE) for i in reversed(range(len(new), len(old))))
        for i, value in enumerate(new):
            if i < len(old):
                yield from _changes(old[i], value, (*path, i))
            else:
                yield (*path, i), value
    elif not _alike(old, new):
        yield path, new


@dataclass(frozen=True)
class _Part:
    """A header or a key with its value.

    Attributes:
        path: Where its values lie.
        first: Its first line, and `last` the one after it.
        section: Path of the header that it stands below.
        own: For a key, the text before "=".
    """

    path: Path
    first: int
    last: int
    section: Path
    own: str = ""
    is_header: bool = False


def _parts(lines: Sequence[str]) -> list[_Part]:
    """Split a valid TOML file into its headers and keys."""
    parts: list[_Part] = []
    section: Path = ()
    lengths: dict[Path, int] = {}  # of arrays of tables
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        if not line or line.startswith("#"):
            number += 1
        elif line.startswith("["):
            section = _section(line, lengths)
            parts.append(_Part(section, number, number + 1, section, is_header=True))
            number += 1
        else:
            last = _end(lines, number)
            names, own = _names(lines[number])
            parts.append(_Part((*section, *names), number, last, section, own))
            number = last
    return parts


def _section(header: str, lengths: dict[Path, int]) -> Path:
    """Return the path of a header; one of an array of tables begins its next element."""
    value = toml.parse(header)
    names = []
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        names.append(name)
    path: Path = ()
    for place, name in enumerate(names, 1):
        path = (*path, name)
        if place == len(names) and isinstance(value, list):
            lengths[path] = lengths.get(path, 0) + 1
        if path in lengths:
            path = (*path, lengths[path] - 1)
    return path


def _end(lines: Sequence[str], first: int) -> int:
    """Return the line after a key and its value, which may take several lines."""
    for last in range(first + 1, len(lines) + 1):
        with suppress(toml.Invalid):
            toml.parse("\n".join(lines[first:last]))
            return last
    raise ValueError(lines[first])


def _names(line: str) -> tuple[list[str], str]:
    """Return the names of a key, several of a dotted one, and its text."""
    for place in (i for i, letter in enumerate(line) if letter == "="):
        with suppress(toml.Invalid):
            value = toml.parse(line[:place] + "= 0")
            names = []
            while isinstance(value, dict):
                name, value = next(iter(value.items()))
                names.append(name)
            return names, line[:place].rstrip()
    raise ValueError(line)


def _value(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _set(lines: list[str], path: Path, value: Any, values: dict[str, Any]) -> None:
    parts = _parts(lines)
    for part in parts:
        if not part.is_header and path[: len(part.path)] == part.path:  # the key, or the one whose table it lies in
            lines[part.first : part.last] = _written(part.own, _value(values, part.path), _comment(lines, part))
            return
    if isinstance(path[-1], int):
        _add_tables(lines, parts, path[:-1], [value])
    elif _is_tables(value):
        _add_tables(lines, parts, path, value)
    elif isinstance(value, dict) and all(isinstance(part, str) for part in path):
        lines += ["", *_dumped(path, value)]
    else:
        _add_key(lines, parts, path, value)


def _add_key(lines: list[str], parts: list[_Part], path: Path, value: Any) -> None:
    parent = path[:-1]
    beside = [
        part for part in parts if part.path[: len(parent)] == parent and (part.path == parent or not part.is_header)
    ]
    beside = [part for part in beside if len(part.section) <= len(parent)]  # not of a table inside
    if beside:
        part = beside[-1]
        own = ".".join(key_text(str(name)) for name in path[len(part.section) :])
        lines[part.last : part.last] = _written(own, value)
    elif not parent:
        lines[_top(lines, parts) : _top(lines, parts)] = [*_written(key_text(str(path[-1])), value), ""]
    else:
        inside = [part for part in parts if part.path[: len(parent)] == parent]
        at = inside[0].first if inside else len(lines)  # a table comes before those inside of it
        header = ".".join(key_text(name) for name in parent if isinstance(name, str))
        table = [f"[{header}]", *_written(key_text(str(path[-1])), value)]
        lines[at:at] = [*table, ""] if inside else ["", *table]


def _top(lines: list[str], parts: list[_Part]) -> int:
    """Return the line before the first header and the comments directly above it."""
    at = parts[0].first if parts else len(lines)
    while at > 0 and lines[at - 1].startswith("#"):
        at -= 1
    return at or (parts[0].first if parts else len(lines))


def _add_tables(lines: list[str], parts: list[_Part], path: Path, tables: list[dict[str, Any]]) -> None:
    """Add elements of an array of tables, after those that are there."""
    same = [part.last for part in parts if part.path[: len(path)] == path]
    at = max(same, default=len(lines))
    header = f"[[{'.'.join(key_text(name) for name in path if isinstance(name, str))}]]"
    added: list[str] = []
    for table in tables:
        plain = [line for key, value in table.items() for line in _written(key_text(key), value)]
        added += ["", header, *plain]
    lines[at:at] = added


def _dumped(path: Path, value: dict[str, Any]) -> list[str]:
    nested: Any = value
    for name in reversed(path):
        nested = {name: nested}
    return tomli_w.dumps(nested).splitlines()


def _remove(lines: list[str], path: Path, values: dict[str, Any]) -> None:
    parts = _parts(lines)
    for part in parts:
        if not part.is_header and len(part.path) < len(path) and path[: len(part.path)] == part.path:
            lines[part.first : part.last] = _written(part.own, _value(values, part.path), _comment(lines, part))
            return
    for part in reversed([part for part in parts if part.path[: len(path)] == path]):
        last = part.last
        if part.is_header:  # with the empty line that parts it from the next
            while last < len(lines) and not lines[last].strip():
                last += 1
        del lines[part.first : last]


def _written(own: str, value: Any, comment: str = "") -> list[str]:
    line = f"{own} = {literal(value)}"
    if isinstance(value, list) and len(line) > _WIDTH:
        return [f"{own} = [{comment}", *(f"    {literal(one)}," for one in value), "]"]
    return [line + comment]


def _comment(lines: list[str], part: _Part) -> str:
    """Return the comment behind a value of one line, with the space before it."""
    line = lines[part.first]
    if part.last > part.first + 1:
        return ""
    value = toml.parse(line)
    for place in (i for i, letter in enumerate(line) if letter == "#"):
        with suppress(toml.Invalid):
            if toml.parse(line[:place]) == value:
                text = line[:place].rstrip()
                return line[len(text) :]
    return ""
