"""Which model are these weights of? Asked when weights do not fit, so that the error can say it.

All presets are built on the meta device, some seconds in all, and compared by names and shapes. Only those of
text encoders and autoencoders are told by their names alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import registry, weights
from reelworks.models.weights import ShapeMismatch, Shapes

_TEXT_ENCODERS = ("SelfAttention.q", "text_model.encoder.", "self_attn.q_proj.", "transformer.resblocks.")
_LORA = ("lora_", ".lora.", "lokr_", "hada_")
_WRAPPERS = ("module.", "model.diffusion_model.", "diffusion_model.", "transformer.", "unet.", "model.")


@dataclass(frozen=True)
class BestMatch:
    """The known models that are most like some tensors.

    Attributes:
        names: Presets; several where their networks are alike.
        fitting: Tensors with a name and shape of theirs.
        total: Tensors of the file, or of the network if it has more.
    """

    names: tuple[str, ...]
    fitting: int
    total: int


def explained(misfit: ShapeMismatch, name: str = "") -> UserError:
    """Turn a misfit into an error that says what the weights are, as far as it is known.

    Args:
        misfit: The error.
        name: The preset that they were for; of an autoencoder, none.
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
    """Say what tensors are, and what to do with them; two empty texts if they are like nothing known.

    Args:
        shapes: Of all tensors of a file.
        for_field: The recipe's key that named the file.
        name: The preset that they are for.
    """
    if is_lora(shapes):
        return (
            "this is a LoRA",
            "name it in lora.weights, and the model that it was trained on in model.weights",
        )
    found = closest(shapes)
    if found.fitting == found.total:
        names = " or ".join(found.names)
        told = f"these are the weights of {names} (all {found.total:,} tensors fit)"
        if name in found.names:
            parts = registry.PRESETS[name].parts
            return (
                told,
                f'set autoencoder.name = "{parts.autoencoder}" and text_encoder.name = "{parts.text}" as published',
            )
        also = "" if for_field in ("model.weights", "--load") else ", and name them in model.weights"
        return told, f'set model.name = "{found.names[0]}"{also}'
    if any(part in name for name in shapes for part in _TEXT_ENCODERS):
        return "these are the weights of a text encoder", "name them in text_encoder.weights"
    if all(any(name.startswith(part) for name in shapes) for part in ("encoder.", "decoder.")):
        remedy = "name them in autoencoder.weights, or another autoencoder.name"
        return "these are the weights of an autoencoder", remedy
    if 2 * found.fitting < found.total:
        return "", ""
    told = (
        f"closest known model: {' or '.join(found.names)} ({found.fitting:,} of {found.total:,} tensors fit)"
    )
    return told, ""


def is_lora(names: Mapping[str, object]) -> bool:
    """Whether tensors are low-rank updates rather than weights."""
    return any(part in name for name in names for part in _LORA)


def closest(shapes: Shapes) -> BestMatch:
    """Compare weights with all presets, in the names of diffusers, of a release, or behind a prefix."""
    scores = {name: _fitting(name, shapes) for name in registry.PRESETS}
    totals = {name: max(len(shapes), len(_own(name))) for name in registry.PRESETS}
    best = max(registry.PRESETS, key=lambda name: scores[name] / totals[name])
    alike = (scores[best], totals[best])
    return BestMatch(tuple(n for n in registry.PRESETS if (scores[n], totals[n]) == alike), *alike)


def _fitting(name: str, shapes: Shapes) -> int:
    """How many tensors have a name and shape of a preset's network."""
    own = _own(name)
    return max(sum(own.get(key) == shape for key, shape in one.items()) for one in _spellings(name, shapes))


def _spellings(name: str, shapes: Shapes) -> list[Shapes]:
    """Weights in the names of diffusers, as far as a family's release is known."""
    bare = shapes
    for wrapper in _WRAPPERS:
        bare = {key.removeprefix(wrapper): shape for key, shape in bare.items()}
    fewer, more = sorted((len(shapes), len(_own(name))))
    if 2 * fewer < more:  # a release has other names, and nearly as many
        return [bare]
    released = {f"model.diffusion_model.{key}": shape for key, shape in bare.items()}
    return [bare, *(weights.shapes_of(_renamed(name, one)) for one in (bare, released))]


def _renamed(name: str, shapes: Shapes) -> dict[str, Tensor]:
    state = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    family = registry.load_network(registry.family_of(name))
    return family.renamed(network(name), registry.PRESETS[name].config, state)


@functools.cache
def network(name: str) -> nn.Module:
    """A preset's network at its published size, without numbers."""
    with torch.device("meta"):
        return registry.load_network(registry.family_of(name)).build(registry.PRESETS[name].config)


@functools.cache
def _own(name: str) -> Shapes:
    return weights.shapes_of(network(name).state_dict())
