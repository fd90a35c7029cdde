"""Follow a key of recipes from TOML to where it acts: python scripts/where.py train.ema_decay [--all]

Prints where the key is declared, with its description, and each line of the program that reads it of its table, by wing. With
--all, lines that read an attribute of its name of anything: a table may have another name where it is used.
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from reelworks.core.config import meanings
from reelworks.training.recipe.recipe import Recipe

_SOURCE = Path(__file__).parents[1] / "src" / "reelworks"


def main(key: str, *options: str) -> int:
    """Print the way of a key, and return the exit status."""
    *tables, name = key.split(".")
    config: type[BaseModel] = Recipe
    for table in tables:
        if table not in config.model_fields or (below := _config_in(config.model_fields[table].annotation)) is None:
            return _unknown(table, config)
        config = below
    if name not in config.model_fields:
        return _unknown(name, config)
    field = config.model_fields[name]
    print(f"{key}: {meanings(config)[name] or field.annotation}\n")
    print(f"declared  {_line_of(config, name)}")
    wing = ""
    for where, line in _reads(name, "" if "--all" in options or not tables else tables[-1]):
        here = where.partition("/")[0]
        print(f"{here if here != wing else '':10}{where}: {line}")
        wing = here
    return 0


def _unknown(name: str, config: type[BaseModel]) -> int:
    print(f"there is no {name}; it has {', '.join(config.model_fields)}", file=sys.stderr)
    return 2


def _config_in(annotation: Any) -> type[BaseModel] | None:
    """Return the class of a table, which may be one of a list or be missing."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _config_in(part)) is not None), None)


def _line_of(config: type[BaseModel], name: str) -> str:
    owner = next(one for one in config.__mro__ if name in vars(one).get("__annotations__", {}))
    lines, first = inspect.getsourcelines(owner)
    number = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{name}:"))
    return f"{Path(inspect.getfile(owner)).relative_to(_SOURCE)}:{first + number}"


def _reads(name: str, table: str) -> Iterator[tuple[str, str]]:
    for file in sorted(_SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if f".{name}" in text:
            reads = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute) and n.attr == name)
            found = {n.lineno for n in reads if not table or ast.unparse(n.value).split(".")[-1].strip("_") == table}
            for number in sorted(found):
                yield f"{file.relative_to(_SOURCE).as_posix()}:{number}", text.splitlines()[number - 1].strip()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
