"""Read what is known of a model family from `family.toml` beside its `spec.py`; torch-free.

Its tables are those of `family.Family`, and `[all]` has values that all presets have. In `[presets]`, `config` has the
values of the network's config that are not its defaults. An entry has the values of another one that it is `like`, except
for its release, and tables are merged. "none" stands for None.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from reelworks.core import toml, toml_none
from reelworks.models.family import (
    Family,
    Parts,
    Preset,
    PublishedAutoencoder,
    PublishedSound,
    PublishedText,
    Release,
    SamplingDefaults,
    TextNetwork,
)

FILE = "family.toml"
_Values = dict[str, Any]


def read(package: str, *configs: type[Any]) -> Family:
    """Return the family of a package, whose networks have these configs; presets name any but the first as `class`."""
    text = importlib.resources.files(package).joinpath(FILE).read_text(encoding="utf-8")
    tables: _Values = {"all": {}, "autoencoders": {}, "text_encoders": {}, "sound_encoders": {}} | _plain(
        toml.parse(text)
    )
    of_all, presets = tables.pop("all"), tables.pop("presets")
    of_releases = of_all.pop("release", {})
    by_name = {config.__name__: config for config in configs}
    made = {}
    for name, values in _with_likes(presets).items():
        values = _merged(of_all, values)
        config = by_name[values.pop("class", configs[0].__name__)]
        release = values.pop("release", None)
        made[name] = Preset(
            config=config.model_validate_json(json.dumps(values.pop("config", {}))),
            parts=Parts(**values.pop("parts")),
            sampling=SamplingDefaults(**values.pop("sampling")),
            release=None if release is None else Release(**_merged(of_releases, release)),
            **values,
        )
    autoencoders, texts, sounds = (
        _with_likes(tables.pop(table)) for table in ("autoencoders", "text_encoders", "sound_encoders")
    )
    for values in (*autoencoders.values(), *sounds.values()):
        if "module" in values:
            values["module"] = f"{package}.{values['module']}"
    for values in texts.values():
        values["networks"] = tuple(
            TextNetwork(**network | {"sizes": tuple(network.get("sizes", {}).items())})
            for network in values.get("networks", ())
        )
    return Family(
        network=f"{package}.network",
        presets=made,
        autoencoders={name: PublishedAutoencoder(**values) for name, values in autoencoders.items()},
        text_encoders={name: PublishedText(**values) for name, values in texts.items()},
        sound_encoders={name: PublishedSound(**values) for name, values in sounds.items()},
        **tables,
    )


def _with_likes(entries: Mapping[str, _Values]) -> dict[str, _Values]:
    """Return entries with the values of those that they are like."""

    def whole(values: _Values) -> _Values:
        if "like" not in values:
            return values
        other = {name: value for name, value in whole(entries[values["like"]]).items() if name != "release"}
        return _merged(other, {name: value for name, value in values.items() if name != "like"})

    return {name: dict(whole(values)) for name, values in entries.items()}


def _merged(values: _Values, own: _Values) -> _Values:
    """Return values with those of an entry in their place; of tables, each value."""
    both = {name: {**values[name], **own[name]} for name in values.keys() & own.keys() if isinstance(own[name], dict)}
    return values | own | both


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return None if value == toml_none.WORD else value
