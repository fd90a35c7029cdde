"""Change values in the text of a TOML file, so that the comments and the order of everything else stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import tomli_w

from reelworks.core import toml
from reelworks.training.recipe.toml_writer import literal

Place = tuple[list[Any], int]  # of a line in the body of a table
_WIDTH = 110  # a longer list is written with a line for each element


def rewrite(text: str, values: dict[str, Any]) -> str:
    r"""Return the text of a TOML file with other values.

    A text that is written in an uncommon way, so that the changes cannot be put into it, is written anew, without
    comments.

    Examples:
        >>> rewrite("a = 1  # why\\n[b]\\nc = 2\\n", {"a": 3, "b": {"c": 2}})
        'a = 3  # why\\n[b]\\nc = 2\\n'
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    with suppress(TOMLKitError, LookupError, TypeError, ValueError):
        old = toml.parse(text)
        document = tomlkit.parse(text)
        above = list(_take_above(document.body, []))
        _update(document, old, values)
        for table, lines in above:
            table.trivia.indent = lines
        changed = tomlkit.dumps(document).rstrip("\n") + "\n"
        if _alike(toml.parse(changed), values):
            return changed
    return tomli_w.dumps(values)


def _take_above(body: list[Any], before: list[Place]) -> Iterator[tuple[Any, str]]:
    """Take empty lines and comments above headers out of the tables that they follow; yield each header's table with them.

    So a new key of a table is written below its other keys, and not below what belongs to the next table.

    Args:
        body: Body of a table of tomlkit.
        before: Places of such lines directly above the body; afterwards those at its end.
    """
    from tomlkit.items import AoT, Null, Table

    for place, (key, item) in enumerate(list(body)):
        if key is None:
            before.append((body, place))
        elif isinstance(item, Table | AoT) and not key.is_dotted():
            for table in item.body if isinstance(item, AoT) else [item]:
                if not table.is_super_table():
                    yield table, "".join(lines[at][1].as_string() for lines, at in before) + table.trivia.indent
                    for lines, at in before:
                        lines[at] = None, Null()
                    before.clear()
                yield from _take_above(table.value.body, before)
        else:
            before.clear()


def _update(table: Any, old: dict[str, Any], values: dict[str, Any]) -> None:
    """Give a table of tomlkit, which has old values, others."""
    import tomlkit
    from tomlkit.items import AoT, InlineTable

    for key in old.keys() - values.keys():
        del table[key]
    for key, value in values.items():
        item = table.get(key)
        if isinstance(item, dict) and not isinstance(item, InlineTable) and isinstance(value, dict):
            _update(item, old[key], value)
        elif isinstance(item, AoT) and _are_tables(value):
            del item[len(value) :]
            for one, former, new in zip(item, old[key], value, strict=False):
                _update(one, former, new)
            for new in value[len(item) :]:
                item.append(tomlkit.item(new))
                item[-1].trivia.indent = "\n"
        elif key not in old and (isinstance(value, dict) or _are_tables(value)):
            table[key] = value
        elif key not in old or not _alike(old[key], value):
            line = literal(value)
            if isinstance(value, list) and len(key) + len(line) >= _WIDTH:
                line = "\n".join(["[", *(f"    {literal(one)}," for one in value), "]"])
            table[key] = tomlkit.value(line)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _alike(a: Any, b: Any) -> bool:
    """Return whether values are equal and of the same type, unlike 1 and true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    return type(a) is type(b) and bool(a == b)
