"""Identify the model of weights that do not fit a network, so that the error can name it.

All presets are built on the meta device, in a few seconds, and compared by tensor names and shapes. Text
encoders and autoencoders are recognised by names alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from reelworks.core.errors import UserError
from reelworks.models import meta_init, registry
from reelworks.models.storage import weights
from reelworks.models.storage.weights import ShapeMismatch, Shapes

_TEXT_ENCODERS = ("SelfAttention.q", "text_model.encoder.", "self_attn.q_proj.", "transformer.resblocks.")
_LORA = ("lora_", ".lora.", "lokr_", "hada_", "oft_")


class BestMatch(NamedTuple):
    """The presets whose networks are most similar to some tensors; several if they are equally similar.

    `fitting` counts tensors whose name and shape the network has, `total` those of the file or network with more.
    """

    names: tuple[str, ...]
    fitting: int
    total: int


def explain(misfit: ShapeMismatch, name: str = "") -> UserError:
    """Return a mismatch with the model that the weights are of, if it is known, and a better remedy.

    `name` is the preset that they were meant for; it is empty for an autoencoder.
    """
    problem, remedy = what(misfit.shapes, for_field=str(misfit.field), name=name)
    return UserError(
        f"{misfit.problem}\n    {problem}" if problem else misfit.problem,
        code=misfit.code,
        field=misfit.field,
        value=misfit.value,
        remedy=remedy or misfit.remedy,
    )


def what(shapes: Shapes, for_field: str, name: str = "") -> tuple[str, str]:
    """Return what the tensors of a file are, and a remedy; two empty texts if no known model is similar.

    `for_field` is the recipe key of the file, and `name` the preset that it is meant for.
    """
    if is_lora(shapes):
        return "this is a LoRA", "point lora.weights to it, and model.weights to the model that it was trained on"
    match = closest(shapes)
    names = " or ".join(match.names)
    if match.fitting == match.total:
        problem = f"these are the weights of {names} (all {match.total:,} tensors fit)"
        if name in match.names:
            parts = registry.PRESETS[name].parts
            remedy = f'set autoencoder.name = "{parts.autoencoder}" and text_encoder.name = "{parts.text}" as published'
            return problem, remedy
        also = "" if for_field in ("model.weights", "--load") else ", and point model.weights to them"
        return problem, f'set model.name = "{match.names[0]}"{also}'
    if any(part in name for name in shapes for part in _TEXT_ENCODERS):
        remedy = "text_encoder.weights takes a folder or hub id that has them with their tokenizer, as pipelines do"
        return "these are the weights of a text encoder", remedy
    if all(any(name.startswith(part) for name in shapes) for part in ("encoder.", "decoder.")):
        remedy = "point autoencoder.weights to them, or choose another autoencoder.name"
        return "these are the weights of an autoencoder", remedy
    if 2 * match.fitting < match.total:
        return "", ""
    return f"closest known model: {names} ({match.fitting:,} of {match.total:,} tensors fit)", ""


def is_lora(names: Mapping[str, object]) -> bool:
    """Whether tensors are low-rank updates rather than weights."""
    return any(part in name for name in names for part in _LORA)


def closest(shapes: Shapes) -> BestMatch:
    """Find the presets that fit best, with the keys of diffusers, of a release, or behind a prefix."""
    bare = weights.by_bare_name(shapes)
    firsts = {name: first_alike(name) for name in registry.PRESETS}
    if equal := tuple(name for name, first in firsts.items() if _own(first) == bare):
        return BestMatch(equal, len(bare), len(bare))
    counts = {}
    for first in dict.fromkeys(firsts.values()):
        own = _own(first)
        fits = [(sum(own.get(k) == v for k, v in s.items()), max(len(s), len(own))) for s in _spellings(first, bare)]
        counts[first] = max(fits, key=_share)
    best = max(counts.values(), key=_share)
    return BestMatch(tuple(name for name, first in firsts.items() if counts[first] == best), *best)


def _share(count: tuple[int, int]) -> float:
    return count[0] / count[1]


def _spellings(first: str, bare: Shapes) -> list[Shapes]:
    """Return weights without prefixes as they are, and renamed from a release to the keys of diffusers."""
    fewer, more = sorted((len(bare), len(_own(first))))
    if 2 * fewer < more:  # a release has other names, and nearly as many
        return [bare]
    family, config = registry.load_network(registry.family_of(first)), registry.PRESETS[first].config
    state = {key: torch.empty(shape, device="meta") for key, shape in bare.items()}
    return [bare, weights.shapes_of(family.rename_keys(_network(first), config, state))]


def network(name: str) -> nn.Module:
    """Return a preset's network at its published size on the meta device; presets of equal sizes share one."""
    return _network(first_alike(name))


@functools.cache
def _network(first: str) -> nn.Module:
    with meta_init.build_on_meta():
        return registry.load_network(registry.family_of(first)).build(registry.PRESETS[first].config)


@functools.cache
def _own(first: str) -> Shapes:
    return weights.shapes_of(_network(first).state_dict())


@functools.cache
def first_alike(name: str) -> str:
    """Return the first preset whose network has the same sizes; what it is shown may differ."""
    config = registry.PRESETS[name].config
    others = ((other, preset.config) for other, preset in registry.PRESETS.items())
    return next(o for o, c in others if type(c) is type(config) and c.model_dump() == config.model_dump())
