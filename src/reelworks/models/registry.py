"""The model families, collected from their folders, and the names that recipes know them by; torch-free."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reelworks.core.errors import UserError, nearest
from reelworks.models import families as folders
from reelworks.models.family import Family, Preset, PublishedAutoencoder, PublishedText, Release

if TYPE_CHECKING:
    from reelworks.models.api import FamilyNetwork

PRESETS: dict[str, Preset] = {}
AUTOENCODERS: dict[str, PublishedAutoencoder] = {}
TEXT_ENCODERS: dict[str, PublishedText] = {}
SHORT_NAMES: dict[str, str] = {}
_FAMILIES: dict[str, Family] = {}
_TINY = Release(None, side=64, lines=64, num_frames=17)  # suits presets that nobody published


def register(family: Family) -> None:
    """Make a family known to recipes, the trainer and the command line of this process.

    Raises:
        UserError: A name of it is taken.
    """
    tables: list[tuple[dict[str, Any], Mapping[str, Any]]] = [
        (_FAMILIES, {family.name: family}),
        (PRESETS, family.presets),
        (AUTOENCODERS, family.autoencoders),
        (TEXT_ENCODERS, family.text_encoders),
        (SHORT_NAMES, family.short_names),
    ]
    for known, names in tables:
        if taken := known.keys() & names.keys():
            raise UserError(
                f"two model families use the name {sorted(taken)[0]!r}",
                code="duplicate-family-name",
                field="family",
                value=family.name,
                remedy="choose another name",
            )
    for known, names in tables:
        known.update(names)


def families() -> tuple[Family, ...]:
    """Return all families that are known."""
    return tuple(_FAMILIES.values())


def family_of(preset: str) -> Family:
    """Return the family of a preset."""
    return next(family for family in _FAMILIES.values() if preset in family.presets)


def family_of_text(name: str) -> Family:
    """Return the family that a text encoder came with."""
    return next(family for family in _FAMILIES.values() if name in family.text_encoders)


def load_network(family: Family) -> FamilyNetwork:
    """Import what builds, loads and calls a family's networks, and torch with it."""
    network: FamilyNetwork = importlib.import_module(family.network).NETWORK
    return network


def preset_name(name: str) -> str:
    """Find the preset that a name means: its own, or a family's short one.

    Raises:
        UserError: Names the nearest.
    """
    found = SHORT_NAMES.get(name, name)
    if found not in PRESETS:
        raise UserError(
            "there is no such model",
            code="unknown-model",
            field="--model",
            value=name,
            remedy=nearest(name, {*PRESETS, *SHORT_NAMES}),
        )
    return found


def release_of(preset: str) -> Release:
    """Return how a preset was published; of one that nobody published, what suits it."""
    return PRESETS[preset].release or _TINY


for _found in pkgutil.iter_modules(folders.__path__):
    register(importlib.import_module(f"{folders.__name__}.{_found.name}.spec").FAMILY)
