"""None in TOML, which has no null: the word "none" stands for it in optional keys."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

WORD = "none"


def from_toml(values: Any, annotation: Any) -> Any:
    """Return the values with "none" replaced by None in the keys whose annotation allows None."""
    if values == WORD and type(None) in typing.get_args(annotation):
        return None
    config = config_in(annotation)
    if config is None:
        return values
    if isinstance(values, list):
        return [from_toml(value, config) for value in values]
    if not isinstance(values, dict):
        return values
    known = config.model_fields
    return {k: from_toml(v, known[k].annotation) if k in known else v for k, v in values.items()}


def to_toml(config: BaseModel) -> dict[str, Any]:
    """Return a config as plain values; None is left out if it is the default, else written as "none"."""
    values = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if value is not None:
            values[name] = _plain(value)
        elif field.get_default(call_default_factory=True) is not None:
            values[name] = WORD
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return to_toml(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return value


def config_in(annotation: Any) -> type[BaseModel] | None:
    """Return the config class inside an annotation such as `list[X]` or `X | None`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    configs = (config_in(inner) for inner in typing.get_args(annotation))
    return next((config for config in configs if config is not None), None)
