"""Previews with another model than the trained one: its weights are loaded for them, and released after.

On a GPU of its own, the trained network waits in CPU memory meanwhile, so that both are never on the GPU at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from reelworks.core import device_memory
from reelworks.core.errors import UserError
from reelworks.data.distributed import mesh
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.mesh import World, local
from reelworks.models import components
from reelworks.models.adapters import inject, training_adapter
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.attention import attention
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.recipe import preview_model
from reelworks.training.recipe.recipe import Recipe


class PreviewModel(NamedTuple):
    """A model to make previews with, and its encoders."""

    recipe: Recipe  # with the previews' model in place of the trained one
    boundary: DtypeBoundary[DenoiserInputs]
    encoder: FrozenEncoders


def require_layers(recipe: Recipe) -> None:
    """Refuse a model for previews whose layers differ from those that the LoRA is trained on; reads no weights."""
    if not recipe.samples.has_model:
        return
    trained, shown = (_shapes(each) for each in (recipe, preview_model.recipe_of(recipe)))
    if trained != shown:
        differing = sorted(name for name in trained.keys() | shown.keys() if trained.get(name) != shown.get(name))
        raise UserError(
            f"the LoRA does not fit this model: {len(differing):,} of its {len(trained):,} tensors, such as {differing[0]}",
            code="preview-model-of-other-layers",
            field="samples.model",
            value=recipe.samples.model or recipe.model.name,
            remedy="choose a model of the same size, or lora.targets that both have",
        )


def _shapes(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    empty = recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})
    module = build.denoiser(empty, torch.device("meta"), trains=False).module
    return {name: tuple(value.shape) for name, value in inject.weights(module).items()}


@contextmanager
def loaded(
    recipe: Recipe, trained: DtypeBoundary[DenoiserInputs], encoder: FrozenEncoders, world: World, layout: Layout | None
) -> Iterator[PreviewModel]:
    """Yield the model of a recipe's previews with the LoRA that a network holds now. Collective.

    Without a model of its own, that is the trained network, without its training adapter. Another one is sharded by
    `layout`, which is that of the trained network.
    """
    module = trained.denoiser.module
    if not recipe.samples.has_model:
        with training_adapter.disable(module):
            yield PreviewModel(recipe, trained, encoder)
        return
    shown = preview_model.recipe_of(recipe)
    conditioning = components.conditioning(shown.model)
    with _parked(module, world):
        denoiser = _with_lora(shown, module, world, layout)
        try:
            yield PreviewModel(shown, DtypeBoundary(denoiser), replace(encoder, conditioning=conditioning))
        finally:
            if not world.shards:  # before the trained network returns, whoever still refers to this one
                nn.Module.to(denoiser.module, "meta")


def _with_lora(recipe: Recipe, trained: nn.Module, world: World, layout: Layout | None) -> Denoiser:
    denoiser = build.denoiser(recipe, world.home, resumed=True, trains=False)
    attention.use(denoiser, recipe.model.attention, world.device)
    if layout is not None:
        mesh.shard(denoiser.module, denoiser.sharding().units, denoiser.contract, world, layout)
    denoiser.module.requires_grad_(False).eval()
    values = inject.weights(trained)
    for name, value in inject.weights(denoiser.module).items():
        local(value).copy_(local(values[name]))
    return denoiser


@contextmanager
def _parked(module: nn.Module, world: World) -> Iterator[None]:
    """Keep a network in CPU memory within the context; one that is sharded, or on the CPU anyway, stays where it is."""
    if world.shards or world.device.type == "cpu":
        yield
        return
    tensors = [*module.parameters(), *module.buffers()]
    _move(tensors, torch.device("cpu"))
    device_memory.release(world.device)
    try:
        yield
    finally:
        _move(tensors, world.device)


@torch.no_grad()
def _move(tensors: list[torch.Tensor], device: torch.device) -> None:
    for tensor in tensors:
        tensor.data = tensor.data.to(device)
