"""Gradients of one micro-batch, in processes of their own that share its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def gradients(recipe: dict[str, Any], folder: str) -> None:
    """Write this rank's loss and gradients of each of the recipe's `models` to a file."""
    from reelworks.data.distributed import mesh
    from reelworks.data.distributed.config import ParallelConfig

    torch.set_num_threads(1)
    degree = recipe["degree"]
    with mesh.join(parallel=ParallelConfig(sequence_degree=degree)) as world:
        for name in recipe["models"]:
            for variant in recipe["variants"]:
                result = loss_and_gradients(name, world, **variant)
                torch.save(result, Path(folder) / f"{name}-{'-'.join(variant)}-{degree}-{world.rank}.pt")


def loss_and_gradients(
    name: str, world: Any, *, gradient_checkpointing: bool | str = False, lora: bool = False
) -> dict[str, torch.Tensor]:
    """Return the loss and the gradients of a micro-batch; fresh weights are drawn away from their zeros."""
    from reelworks.models import components, factory
    from reelworks.models.adapters.config import LoraConfig
    from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
    from reelworks.models.precision.boundary import DtypeBoundary
    from reelworks.models.sequence.sequence_parallel import SequenceParallel

    model = ModelConfig(name=name, gradient_checkpointing=gradient_checkpointing)
    autoencoder = AutoencoderConfig(stride=2)
    text = TextEncoderConfig(dim=32, max_length=6, pooled_dim=16)
    config = components.family_config(model)
    denoiser = factory.build_denoiser(
        model, autoencoder=autoencoder, text=text, device="cpu", seed=1, lora=LoraConfig(rank=2) if lora else None
    )
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in denoiser.module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    SequenceParallel.of_denoiser(denoiser, config.network, world)
    inputs = example(config, denoiser.latent_channels, text, draw)
    out = DtypeBoundary(denoiser)(inputs)
    target = torch.randn(out.shape, generator=draw)
    loss = (out - target).square().mean()
    torch.autograd.backward(loss)
    grads = {key: p.grad for key, p in denoiser.module.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **grads}


def example(config: Any, channels: int, text: Any, draw: torch.Generator) -> Any:
    from reelworks.data.catalog.sources import SOURCES
    from reelworks.models.api import DenoiserInputs, given

    # 9 tokens a frame, which no group shares equally, where the network pads.
    B, T, side = 2, 1 if config.pictures_only else 3, 3 * config.patch_size[-1] if config.network.sequence.pads else 8
    latent = torch.randn(B, channels, T, side, side, generator=draw)
    mask = torch.ones(B, text.max_length, dtype=torch.bool)
    mask[0, 4:] = False
    frame_mask = torch.ones(B, T, dtype=torch.bool)
    if config.conditioning.frames and T > 1:
        frame_mask[1, 0] = False
    values = {}
    wants = config.conditioning
    sources = SOURCES[: wants.companions.most_sources] if "source" in wants.companions.takes else ()
    for companion in (*(("control",) if "control" in wants.companions.takes else ()), *sources):
        values[companion] = torch.randn(latent.shape, generator=draw)
    if config.conditioning.shown.first:
        values["first_frame"] = torch.randn(latent.shape, generator=draw)
    if config.conditioning.shown.width:
        values["image"] = torch.randn(B, 257 * (1 + wants.shown.last), wants.shown.width, generator=draw)
    return DenoiserInputs(
        latent=latent,
        time=torch.tensor([300.0, 800.0]),
        text=torch.randn(B, text.max_length, text.dim, generator=draw),
        text_mask=mask,
        pooled=torch.randn(B, text.pooled_dim, generator=draw),
        guidance=torch.ones(B),
        frame_mask=frame_mask,
        fps=torch.full((B,), 24.0),
        height=torch.full((B,), 16.0),
        width=torch.full((B,), 16.0),
        drop_text=torch.tensor([False, True]),
        **given(values, B),
    )
