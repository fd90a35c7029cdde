"""Collect the model families from their folders, with the names that recipes use; torch-free."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reelworks.core import toml
from reelworks.core.errors import UserError, nearest
from reelworks.models import families as folders
from reelworks.models.family import Family, Preset, PublishedAutoencoder, PublishedSound, PublishedText, Release

if TYPE_CHECKING:
    from reelworks.models.api import FamilyNetwork

PRESETS: dict[str, Preset] = {}
AUTOENCODERS: dict[str, PublishedAutoencoder] = {}
TEXT_ENCODERS: dict[str, PublishedText] = {}
SOUND_ENCODERS: dict[str, PublishedSound] = {}
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
        (SOUND_ENCODERS, family.sound_encoders),
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


def find(name: str) -> str | None:
    """Return the preset that a name means: its own or a short name, in any spelling, or the hub id of its weights."""
    if name in PRESETS:
        return name
    meant: dict[str, str] = {}
    for preset, known in PRESETS.items():
        if known.release is not None and known.release.weights is not None:
            address = re.sub("-diffusers$", "", known.release.weights, flags=re.IGNORECASE)
            # Of presets of the same weights, the last is meant.
            meant |= {plain(address): preset, plain(address.rpartition("/")[2]): preset}
    # A name of ours wins over an address that is spelled alike.
    meant |= {plain(short): preset for short, preset in SHORT_NAMES.items()} | {plain(p): p for p in PRESETS}
    return meant.get(plain(re.sub("-diffusers$", "", name, flags=re.IGNORECASE)))


def preset_name(name: str, field: str = "--model") -> str:
    """Return the preset that a name of the user's means, as `find` does; a name of no model is refused."""
    preset = find(name)
    if preset is None:
        raise _unknown(name, field)
    return preset


def require(name: str) -> None:
    """Refuse a name in a recipe that is not a preset's own, on which identities of runs depend."""
    if name not in PRESETS:
        raise _unknown(name, "model.name")


def _unknown(name: str, field: str) -> UserError:
    if (preset := find(name)) is not None:
        remedy = f'write "{preset}"'
        problem = "recipes name models by their presets"
        return UserError(problem, code="unknown-model", field=field, value=name, remedy=remedy)
    elsewhere = next((model for start, model in _NOT_HERE.items() if plain(name).startswith(start)), None)
    tuned = (pair for family in _FAMILIES.values() for pair in family.tuned.items())
    base = next((model for start, model in tuned if plain(name).startswith(start)), None)
    if base is not None:
        problem = f"this is {base} with other weights"
        remedy = f"give --model {base} --weights FILE, the file of these weights"
    elif elsewhere is None:
        remedy, problem = _like(name), "there is no such model"
    else:
        problem = f"{elsewhere} cannot be trained here"
        remedy = "choose one of these: " + ", ".join(name for name, known in PRESETS.items() if known.release)
    return UserError(problem, code="unknown-model", field=field, value=name, remedy=remedy)


def _like(name: str) -> str:
    """Return a remedy with the names that have all words of a name, or else with the nearest one."""
    words = set(re.findall("[a-z]+|[0-9.]+", name.casefold()))
    own = [p for p in PRESETS if words <= set(re.findall("[a-z0-9]+", p)) | set(re.findall("[a-z]+|[0-9.]+", p))]
    published = [preset for preset in own if PRESETS[preset].release]
    if words and 0 < len(published) <= _MOST_ALIKE:
        return "did you mean " + " or ".join(f'"{preset}"' for preset in published) + "?"
    return nearest(name, {*PRESETS, *SHORT_NAMES})


def plain(name: str) -> str:
    """Return a name as people spell it differently: Wan2.1, wan-2.1 and WAN_2_1 are the same."""
    return re.sub("[^a-z0-9]", "", name.casefold())


_MOST_ALIKE = 4
# Models that people ask for under these names, by the beginning of the plain name.
_NOT_HERE = {start: model for model, starts in toml.beside(__file__, "not_here.toml").items() for start in starts}


def text_encoders_of(preset: str) -> PublishedText | None:
    """Return the text encoders that a preset was published with; None if they are not known."""
    return TEXT_ENCODERS.get(PRESETS[preset].parts.text) if preset in PRESETS else None


def has_one_text_encoder(preset: str) -> bool:
    """Whether a preset was published with one text encoder, to which kohya's scripts give no number."""
    texts = text_encoders_of(preset)
    return texts is not None and len(texts.networks) == 1


def release_of(preset: str) -> Release:
    """Return how a preset was published, or a stand-in with small shapes if it was not."""
    return PRESETS[preset].release or replace(_TINY, objective=PRESETS[preset].config.conditioning.objectives[0])


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
