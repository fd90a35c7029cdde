"""Collect the model families from their folders, with the names that recipes use; torch-free."""

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
_TINY = Release(None, side=64, lines=64, num_frames=17)  # for presets that were never published


def register(family: Family) -> None:
    """Make a family known to recipes, the trainer and the command line of this process; its names must be free."""
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
    """Return all registered families."""
    return tuple(_FAMILIES.values())


def family_of(preset: str) -> Family:
    """Return the family of a preset."""
    return next(family for family in _FAMILIES.values() if preset in family.presets)


def family_of_text(name: str) -> Family:
    """Return the family that a text encoder came with."""
    return next(family for family in _FAMILIES.values() if name in family.text_encoders)


def load_network(family: Family) -> FamilyNetwork:
    """Import and return what builds, loads and calls a family's networks; imports torch too."""
    network: FamilyNetwork = importlib.import_module(family.network).NETWORK
    return network


def preset_name(name: str) -> str:
    """Return the preset of a name, which is the preset's own or a short one; an unknown name is refused."""
    preset = SHORT_NAMES.get(name, name)
    if preset not in PRESETS:
        raise UserError(
            "there is no such model",
            code="unknown-model",
            field="--model",
            value=name,
            remedy=nearest(name, {*PRESETS, *SHORT_NAMES}),
        )
    return preset


def release_of(preset: str) -> Release:
    """Return how a preset was published, or a stand-in with small shapes if it was not."""
    return PRESETS[preset].release or _TINY


def frame_rate(preset: str) -> float:
    """Return the frame rate that a preset was trained with; refuse a model without one."""
    known = PRESETS[preset]
    if known.fps is None:
        problem = "makes pictures only" if known.config.pictures_only else "takes the frame rate of a clip as an input"
        raise UserError(
            f"{preset} {problem}, so it has no frame rate of its own",
            code="model-without-frame-rate",
            field="data.fps",
            value="model",
            remedy="give a number, or leave it out to read all frames",
        )
    return known.fps


for _folder in pkgutil.iter_modules(folders.__path__):
    register(importlib.import_module(f"{folders.__name__}.{_folder.name}.spec").FAMILY)
