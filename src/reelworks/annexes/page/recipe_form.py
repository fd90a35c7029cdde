"""The keys of recipes as fields of a form, made from the JSON Schema of `Recipe`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from reelworks.core.results import Json
from reelworks.training.recipe.recipe import Recipe

_HEADER = re.compile(r"^`\[.*?\]`(: | of a recipe: |\.$)")
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@cache
def sections() -> tuple[Json, ...]:
    """Return the tables of a recipe, the keys at its top first, each with its fields.

    Returns:
        Each with `key`, such as "train" ("" at the top), `repeated`, `about` and `fields`. A field has `key`, `kind`
        ("truth", "whole", "number", "text", "choice", or "value" for what is written as in TOML), `choices`, `bounds`,
        `default` (None if it has none), `required` and `about`.
    """
    schema = Recipe.model_json_schema()
    return tuple(_sections(schema, schema["$defs"], "", repeated=False))


def _sections(schema: Json, defs: Json, key: str, *, repeated: bool) -> Iterator[Json]:
    fields, inside = [], []
    for name, value in schema["properties"].items():
        table, is_list = _table(value, defs)
        if table is not None:
            inside.append((f"{key}.{name}".lstrip("."), table, is_list, _plain(value.get("description", ""))))
        else:
            required = name in schema.get("required", ()) and name != "output"  # which has a default in files
            fields.append(_field(name, value, required))
    about = _plain(_HEADER.sub("", " ".join(schema.get("description", "").partition("\n\n")[0].split())))
    yield {"key": key, "repeated": repeated, "about": about if key else "", "fields": fields}
    for path, table, is_list, note in inside:
        for section in _sections(table, defs, path, repeated=is_list):
            yield section | {"about": note or section["about"]} if section["key"] == path else section


def _table(value: Json, defs: Json) -> tuple[Json | None, bool]:
    """Return the schema of a table or of the tables of a list; None for other values."""
    for option in (value, *value.get("anyOf", ())):
        items = option.get("items", {}) if option.get("type") == "array" else {}
        for reference, is_list in ((option, False), (items, True)):
            if "$ref" in reference:
                found = defs[reference["$ref"].rpartition("/")[2]]
                if "properties" in found:
                    return found, is_list
    return None, False


def _field(name: str, value: Json, required: bool) -> Json:
    options = [option for option in value.get("anyOf", [value]) if option.get("type") != "null"]
    kind, choices = _kind(options)
    bounds = [
        f"{sign} {options[0][word]:g}" for word, sign in _BOUNDS.items() if len(options) == 1 and word in options[0]
    ]
    return {
        "key": name,
        "kind": kind,
        "choices": choices,
        "bounds": ", ".join(bounds),
        "default": value.get("default"),
        "required": required,
        "about": _plain(value["description"]),
    }


def _kind(options: list[Json]) -> tuple[str, list[Any]]:
    if all("enum" in option or "const" in option for option in options):
        return "choice", [one for option in options for one in option.get("enum", [option.get("const")])]
    if len(options) != 1:
        return "value", []
    kinds = {"boolean": "truth", "integer": "whole", "number": "number", "string": "text"}
    return kinds.get(options[0].get("type", ""), "value"), []


def _plain(text: str) -> str:
    return text.replace("`", "")
